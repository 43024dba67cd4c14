// libFuzzer target of what `baton bench`, `sim`, `plan` and `top` read from others: traces and files of prompts, saved
// results, streams of answers, metrics, recordings. Any bytes give a value within its bounds or an error with words.
// The first byte says which reader.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cli/top_model.h"
#include "load/answer_reader.h"
#include "load/merge.h"
#include "load/prompts.h"
#include "plan/observed_load.h"

namespace {

using namespace baton;

void Must(bool holds) {
  if (!holds) std::abort();
}

// A file in memory, whose path readers open.
class File {
 public:
  explicit File(std::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    Must(fd_ >= 0 && write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

void ReadDataset(const char* name, bool chat, std::string_view bytes) {
  const File file(bytes);
  load::BenchOptions options;
  options.backend = chat ? "openai-chat" : "openai";
  options.dataset_name = name;
  options.dataset_path = file.path();
  options.num_prompts = 16;
  const auto prompts = load::DrawPrompts(options);
  if (!prompts.ok()) return Must(!prompts.status().message().empty());
  Must(!prompts->empty() && prompts->size() <= 16);
  Duration last{};
  for (const load::Prompt& prompt : *prompts) {
    Must(prompt.output_tokens >= 0 && prompt.output_tokens <= int64_t{16} << 20);
    if (!prompt.at) continue;
    Must(*prompt.at >= last);
    last = *prompt.at;
  }
}

void ReadResult(std::string_view bytes) {
  const auto merged = load::MergeTexts({{"a", std::string(bytes)}}, {.ttft_ms = 5, .tpot_ms = 5});
  if (!merged.ok()) return Must(!merged.status().message().empty());
  Must(merged->summary.offered > 0 && merged->summary.completed + merged->summary.failed == merged->summary.offered);
}

void ReadAnswer(std::string_view bytes) {
  load::EventLines lines(1 << 16);
  load::Answer answer;
  for (size_t at = 0; at < bytes.size(); at += 7) {
    if (!lines.Feed(bytes.substr(at, 7), [&](std::string_view event) { load::Apply(event, answer); })) break;
  }
  Must(answer.prompt_tokens >= 0 && answer.completion_tokens >= 0 && answer.cached_tokens >= 0);
}

void ReadMetrics(std::string_view bytes) {
  const auto seen = plan::ReadObservedLoad(bytes);
  if (!seen.ok()) return Must(!seen.status().message().empty());
  Must(seen->isl >= 1 && seen->isl <= 1e15 && seen->osl >= 1 && seen->osl <= 1e15);
  Must(seen->hit_share >= 0 && seen->hit_share <= 1 && seen->requests > 0);
}

void ReadRecording(std::string_view bytes) {
  cli::TopModel model;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    const absl::Status taken = model.Take(bytes.substr(at, end - at));
    Must(taken.ok() || !taken.message().empty());
    at = end + 1;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 10) {
    case 0: ReadDataset("mooncake", false, bytes); break;
    case 1: ReadDataset("timed_trace", false, bytes); break;
    case 2: ReadDataset("azure", false, bytes); break;
    case 3: ReadDataset("custom", false, bytes); break;
    case 4: ReadDataset("custom", true, bytes); break;
    case 5: ReadDataset("sharegpt", false, bytes); break;
    case 6: ReadResult(bytes); break;
    case 7: ReadAnswer(bytes); break;
    case 8: ReadMetrics(bytes); break;
    default: ReadRecording(bytes); break;
  }
  return 0;
}
