// The tokenizer part of a GGUF file's metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

class GgufFile;

/// Views point into the GgufFile, which must outlive this.
struct GgufTokenizerMetadata {
  std::string model;                     ///< tokenizer.ggml.model: "gpt2", "llama", "t5"
  std::string pre;                       ///< tokenizer.ggml.pre, "" if absent
  std::vector<std::string_view> tokens;  ///< by id
  std::vector<float> scores;             ///< by id, or empty
  std::vector<int32_t> token_types;      ///< by id, or empty; 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::vector<std::string_view> merges;  ///< "left right" by rank, or empty
  std::optional<int64_t> bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::vector<uint8_t> normalizer;  ///< tokenizer.ggml.precompiled_charsmap (unigram), or empty
  std::string chat_template;        ///< tokenizer.chat_template, "" if absent

  /// InvalidArgument if a field is missing, has the wrong type, or is not as long as `tokens`. NotFound: no tokenizer.
  static absl::StatusOr<GgufTokenizerMetadata> Read(const GgufFile& file);
};

}  // namespace baton
