// Tokenizer: text to token ids and back, from a Hugging Face directory or from the metadata of a GGUF file.
//
// Encode() gives the ids that transformers gives; the work is done by the Rust half (text/rust).
// Decode() joins the tokens' bytes and turns them into UTF-8. Detokenizer (text/detokenizer.h) does the same a token at
// a time, so that streamed and unstreamed text are equal by construction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

struct bt_tokenizer;

namespace baton {

struct GgufTokenizerMetadata;

/// How a tokenizer's token bytes become text.
enum class TextAssembly : uint8_t {
  kByteLevel,   ///< joined bytes; every maximal malformed part is one U+FFFD
  kByteTokens,  ///< SentencePiece with <0xNN> tokens: every malformed byte is one U+FFFD
  kWhole,       ///< other decoders (WordPiece, ...): a token's text depends on its neighbours, the decoder runs on ids
};

/// What decoding does at the very start of a text (SentencePiece puts a space before the first word).
enum class TextStart : uint8_t {
  kKeep,        ///< nothing
  kStripSpace,  ///< one leading space of the text is dropped
  kStripFirst,  ///< every leading space of the first token is dropped
};

/// Immutable after creation; every const method may be called from any thread.
class Tokenizer {
 public:
  static constexpr size_t kPieceBytes = 16 << 10;

  /// Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json, generation_config.json
  /// and config.json. NotFound: no tokenizer.json. InvalidArgument: a file that is malformed. Both name the path.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromHfDirectory(const std::string& directory);

  /// InvalidArgument: unknown model or pre-tokenizer (named), or tokens that contradict each other.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufTokenizerMetadata& metadata);

  /// One for who speaks in token ids alone: it has no vocabulary. Every id's text is empty, Encode is
  /// FailedPrecondition.
  static std::unique_ptr<Tokenizer> None();

  /// Of an HF directory or a .gguf file. Errors as of the two above.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> OfModel(const std::string& path);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// `add_special_tokens`: put BOS/EOS as the model wants (false for text that a chat template rendered). BOS is never
  /// put twice, also when the text begins with it. `parse_special`: special tokens written in the text become their
  /// ids; false makes them ordinary text. Malformed UTF-8: every maximal malformed part is read as U+FFFD. About 0.2 to
  /// 3 µs per byte (runs of digits are the slow end): run long texts on the text pool, not on an io thread.
  /// Texts of more than `piece_bytes` are read in pieces, where they may be cut without another id
  /// (text/rust/src/cuts.rs). What is read at once takes some 130 bytes of memory a byte; of what cannot be cut all
  /// threads together read 8 MiB at once, and wait for each other.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens, bool parse_special = true,
                                              size_t piece_bytes = kPieceBytes) const;

  /// The text of `ids`, always valid UTF-8. Ids outside the vocabulary add nothing.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  /// The bytes a token stands for ("▁the" → " the", "<0x0A>" → "\n"); empty outside the vocabulary. Lives as long as
  /// the tokenizer.
  std::string_view TokenBytes(int32_t id) const { return Has(id) ? token_bytes_.At(id) : std::string_view(); }
  /// The token as the vocabulary spells it ("Ġthe"); empty outside the vocabulary.
  std::string_view IdToToken(int32_t id) const { return Has(id) ? token_names_.At(id) : std::string_view(); }
  std::optional<int32_t> TokenToId(std::string_view token) const;

  /// False: None().
  bool exists() const { return handle_ != nullptr; }
  bool IsSpecial(int32_t id) const { return Has(id) && special_[id] != 0; }
  /// A special token before which a text may be cut, wherever it stands: the ids of the parts are those of the whole.
  bool BeginsPiece(int32_t id) const { return Has(id) && begins_piece_[id] != 0; }
  /// One more than the greatest id, added tokens included. The model's embedding may be larger.
  int32_t vocab_size() const { return vocab_size_; }

  std::optional<int32_t> bos_id() const { return bos_id_; }
  /// Every id that ends a generation: the tokenizer's EOS first, then
  /// generation_config.json's list. Empty if none known.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  std::optional<int32_t> pad_id() const { return pad_id_; }
  /// The tokens' texts as chat templates print them; empty if there is none.
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }
  const std::string& pad_token() const { return pad_token_; }

  /// TextAssembly::kWhole only: the decoder run over `ids`.
  std::string DecodeWhole(absl::Span<const int32_t> ids) const;
  TextAssembly assembly() const { return assembly_; }
  TextStart text_start() const { return text_start_; }

 private:
  friend class GrammarCompiler;  // reads the handle
  /// Strings by token id, one after the other: i's is [ends[i - 1], ends[i]), 0 before the
  /// first. Views into the handle.
  struct Strings {
    const char* bytes;
    const uint64_t* ends;
    std::string_view At(int32_t id) const {
      const uint64_t begin = id == 0 ? 0 : ends[id - 1];
      return {bytes + begin, ends[id] - begin};
    }
  };
  struct SpecialTokens {
    std::string bos, eos, pad;
  };
  Tokenizer() = default;
  explicit Tokenizer(bt_tokenizer* handle);
  void SetSpecialTokens(SpecialTokens tokens, const std::vector<int64_t>& more_eos);
  bool Has(int32_t id) const { return id >= 0 && id < vocab_size_; }

  bt_tokenizer* handle_ = nullptr;  // owned
  Strings token_bytes_{};
  Strings token_names_{};
  const uint8_t* special_ = nullptr;
  const uint8_t* begins_piece_ = nullptr;
  int32_t vocab_size_ = 0;
  std::optional<int32_t> bos_id_;
  bool puts_bos_ = false;  // Encode with special tokens begins with BOS
  std::optional<int32_t> pad_id_;
  std::vector<int32_t> eos_ids_;
  std::string bos_token_;
  std::string eos_token_;
  std::string pad_token_;
  TextAssembly assembly_ = TextAssembly::kByteLevel;
  TextStart text_start_ = TextStart::kKeep;
};

}  // namespace baton
