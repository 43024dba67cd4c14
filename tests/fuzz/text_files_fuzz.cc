// libFuzzer target of what comes with a model's weights and is no weight: tokenizer.json with the files beside it, and
// chat templates. Any bytes give a tokenizer whose ids and texts stay within their bounds, or a template that renders
// within its fuel and memory, or an error with words; nothing aborts the process. The first byte says which; files and
// fields are parted by zero bytes.
//
// The readers are in Rust, whose library tells libFuzzer nothing of its branches. So inputs are made by parts that mean
// something to them (tests/fuzz/text_mutator.h). To be led by the branches too, configure with
//   RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3
//     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
// and a BATON_CARGO_TARGET_DIR of its own, and run the target by hand.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/utf8.h"
#include "tests/fuzz/text_mutator.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

using namespace baton;

constexpr size_t kMostText = 64 << 20;  ///< of a rendering
constexpr std::string_view kText = "Hello <s>[INST] 12345\t\n  naïve ▁日本 <|eot_id|>\xff\xf0\x9f</s>";
constexpr std::string_view kMessages =
    R"([{"role":"system","content":"Be kind."},{"role":"user","content":[{"type":"text","text":"Hi"}]},)"
    R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f",)"
    R"("arguments":{"a":[1,2.5,null,true]}}}]},{"role":"tool","content":"4"},{"role":"user","content":"héllo"}])";

void Must(bool holds) {
  if (!holds) std::abort();
}

/// At most `most` pieces between zero bytes.
std::vector<std::string_view> Parts(std::string_view bytes, size_t most) {
  std::vector<std::string_view> out;
  while (out.size() + 1 < most) {
    const size_t end = bytes.find('\0');
    if (end == bytes.npos) break;
    out.push_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  out.push_back(bytes);
  return out;
}

/// A model's folder, where the next input's files take the place of the last one's.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/text_files_fuzz.XXXXXX";
    Must(mkdtemp(name) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    for (const char* name : kNames) unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }
  static constexpr std::array kNames = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "generation_config.json"};
  void Write(const std::vector<std::string_view>& files) const {
    for (size_t i = 0; i < kNames.size(); ++i) {
      const std::string path = path_ + "/" + kNames[i];
      if (i < files.size()) {
        std::ofstream(path, std::ios::binary) << files[i];
      } else {
        unlink(path.c_str());
      }
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void Use(const Tokenizer& tokenizer) {
  Must(tokenizer.vocab_size() > 0);
  for (const bool add : {false, true}) {
    for (const bool parse : {false, true}) {
      const auto ids = tokenizer.Encode(kText, add, parse);
      if (!ids.ok()) {
        Must(!ids.status().message().empty());
        continue;
      }
      for (const int32_t id : *ids) Must(id >= 0 && id < tokenizer.vocab_size());
      Must(IsUtf8(tokenizer.Decode(*ids, /*skip_special_tokens=*/add)));
    }
  }
  std::vector<int32_t> some = {-1, tokenizer.vocab_size()};
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 300); ++id) {
    some.push_back(id);
    Must(tokenizer.TokenBytes(id).size() < kMostText && tokenizer.IdToToken(id).size() < kMostText);
  }
  Must(IsUtf8(tokenizer.Decode(some, false)));
  for (const int32_t eos : tokenizer.eos_ids()) Must(eos >= 0 && eos < tokenizer.vocab_size());
}

void ReadTokenizer(std::string_view bytes) {
  static const Folder folder;
  folder.Write(Parts(bytes, Folder::kNames.size()));
  const auto tokenizer = Tokenizer::FromHfDirectory(folder.path());
  if (!tokenizer.ok()) return Must(!tokenizer.status().message().empty());
  Use(**tokenizer);
}

/// The template, then messages, tools and kwargs where they are given.
void ReadTemplate(std::string_view bytes) {
  const std::vector<std::string_view> parts = Parts(bytes, 4);
  const auto chat = ChatTemplate::Create(parts[0], {"<s>", "</s>", "<pad>", "<unk>"});
  if (!chat.ok()) return Must(!chat.status().message().empty());
  RenderRequest request{.messages_json = parts.size() > 1 && !parts[1].empty() ? parts[1] : kMessages, .now_s = 1};
  if (parts.size() > 2) request.tools_json = parts[2];
  if (parts.size() > 3) request.kwargs_json = parts[3];
  for (const bool continues : {false, true}) {
    request.continue_final_message = continues;
    request.add_generation_prompt = !continues;
    const auto text = (*chat)->Render(request);
    if (!text.ok()) {
      Must(!text.status().message().empty());
    } else {
      Must(text->size() <= kMostText && IsUtf8(*text));
    }
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return fuzz::MutateText(data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == fuzz::kTemplate) {
    ReadTemplate(bytes);
  } else {
    ReadTokenizer(bytes);
  }
  return 0;
}
