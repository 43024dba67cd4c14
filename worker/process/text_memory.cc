#include "worker/process/text_memory.h"

#include <filesystem>

namespace baton::worker {

int64_t TextBytes(const WorkerConfig& config, int64_t vocab_size) {
  if (config.skip_tokenizer_init) return 0;
  const std::filesystem::path files = config.tokenizer.empty() ? config.model : config.tokenizer;
  std::error_code ignored;
  // A GGUF file has its tokens in it.
  const bool none =
      std::filesystem::is_directory(files, ignored) && !std::filesystem::exists(files / "tokenizer.json", ignored);
  return none ? 0 : kTextBytesPerId * vocab_size;
}

}  // namespace baton::worker
