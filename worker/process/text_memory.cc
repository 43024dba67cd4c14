#include "worker/process/text_memory.h"

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "common/gguf.h"
#include "text/gguf_tokenizer.h"

namespace baton::worker {
namespace {

// What cannot be read at all is said by whoever loads it.
bool HasTokenizer(const std::filesystem::path& files) {
  std::error_code ignored;
  if (std::filesystem::is_directory(files, ignored)) return std::filesystem::exists(files / "tokenizer.json", ignored);
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(files);
  return !file.ok() || GgufTokenizerMetadata::Read(**file).ok();
}

}  // namespace

int64_t TextBytes(const WorkerConfig& config, int64_t vocab_size) {
  if (config.skip_tokenizer_init) return 0;
  return HasTokenizer(config.tokenizer.empty() ? config.model : config.tokenizer) ? kTextBytesPerId * vocab_size : 0;
}

}  // namespace baton::worker
