// TokenCache: the ids of texts seen before. A chat's turns come again with every request of the conversation, and a
// system prompt with every conversation, so a text is cut before its special tokens and every piece is kept for itself.
// What came with one salt is not found with another: from the time that a text takes nobody learns who else has sent
// it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace baton {

/// Finds where a text may be cut: before every token that the tokenizer says begins a piece. Immutable.
class PieceCutter {
 public:
  explicit PieceCutter(const Tokenizer& tokenizer);
  /// The pieces of `text` in order, none empty; one for a text without such tokens; none for an empty text.
  std::vector<std::string_view> Cut(std::string_view text) const;

 private:
  /// The tokens that begin with one byte.
  struct Family {
    char first = 0;
    std::vector<std::string> tokens;
    size_t Find(std::string_view text, size_t from) const;
  };
  std::vector<Family> families_;
};

/// Any thread. Keeps the least recently used pieces out when they would take more than its bytes.
class TokenCache {
 public:
  /// `tokenizer` must outlive it. `capacity_bytes` counts texts, ids and bookkeeping; 0 keeps nothing.
  TokenCache(const Tokenizer& tokenizer, size_t capacity_bytes);

  /// Tokenizer::Encode's ids, special tokens in the text parsed; `salt`: whose text it is. Errors are
  /// Tokenizer::Encode's.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens, std::string_view salt);

  struct Counts {
    int64_t found_bytes = 0, tokenized_bytes = 0;  ///< of text, since its start
    size_t kept_bytes = 0;                         ///< now
  };
  Counts counts() const;

 private:
  using Ids = std::shared_ptr<const std::vector<int32_t>>;
  struct Key {
    std::string_view text;
    bool add_special_tokens;  ///< around it
    uint64_t salt;            ///< hash of it; 0: none
    bool operator==(const Key&) const = default;
  };
  /// Under a seed of the process's own: clients choose the texts.
  struct KeyHash {
    uint64_t seed;
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    std::string text;
    bool add_special_tokens;
    uint64_t salt;
    Ids ids;
  };
  static size_t CostOf(const Entry& entry);
  std::vector<std::string_view> Pieces(std::string_view text, bool add_special_tokens) const;
  absl::StatusOr<Ids> IdsOf(Key piece);
  uint64_t HashOf(std::string_view salt) const;
  Ids Find(Key piece);
  void Keep(Key piece, Ids ids);

  const Tokenizer& tokenizer_;
  const PieceCutter cutter_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;                                               // most recently used first
  absl::flat_hash_map<Key, std::list<Entry>::iterator, KeyHash> by_text_;  // keys view entries_' texts
  Counts counts_;
};

}  // namespace baton
