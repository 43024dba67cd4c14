// The corpus and the goldens of tests/text/golden (written by make_corpus.py, make_tokenizers.py and make_golden.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/gguf.h"
#include "nlohmann/json.hpp"
#include "text/gguf_tokenizer.h"

namespace baton::golden {

inline constexpr const char* kFolder = "tests/text/golden/";  // ctest runs in the repository root

nlohmann::json LoadJson(const std::string& path);

/// Every text of the corpus as bytes (some are not UTF-8).
const std::vector<std::string>& Corpus();

/// FNV-1a, 64 bit, as 16 hex digits.
std::string Hash(std::string_view bytes);
std::string HashIds(absl::Span<const int32_t> ids);

/// What transformers gives for a text: see make_golden.py.
struct Case {
  size_t count;         // ids
  std::string ids;      // hash of the ids, with BOS and EOS as the tokenizer puts them
  std::string bare;     // without
  std::string literal;  // without, and special tokens in the text read as text
  std::string kept;     // hash of the decoded ids
  std::string skipped;  // of the decoded ids that are not special
};
std::vector<Case> LoadCases(const nlohmann::json& golden);

/// The metadata that a GGUF file of a golden tokenizer would have. Owns what the views point to.
class GgufOf {
 public:
  /// `name`: the golden's folder; `pre`: tokenizer.ggml.pre (byte-level tokenizers).
  GgufOf(const std::string& name, const std::string& pre);
  GgufTokenizerMetadata& metadata() { return metadata_; }

 private:
  void ReadByteLevel(const nlohmann::json& tokenizer, const std::string& pre);
  void ReadSentencePiece(const nlohmann::json& pieces, bool unigram);

  std::vector<std::string> tokens_, merges_;
  GgufTokenizerMetadata metadata_;
};

/// The tokenizer metadata of the model that `make demo` fetches; the file owns what the views point to.
struct DemoModel {
  std::string path;
  std::unique_ptr<GgufFile> file;  ///< null: the model is not on this machine
  GgufTokenizerMetadata metadata;
};
DemoModel OpenDemoModel();

}  // namespace baton::golden
