#include "text/token_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <random>

#include "common/status.h"

namespace baton {

PieceCutter::PieceCutter(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.BeginsPiece(id)) continue;
    const std::string token(tokenizer.IdToToken(id));
    auto family = std::ranges::find(families_, token[0], &Family::first);
    if (family == families_.end()) family = families_.insert(family, {token[0], {}});
    family->tokens.push_back(token);
  }
}

size_t PieceCutter::Family::Find(std::string_view text, size_t from) const {
  for (size_t at = text.find(first, from); at != text.npos; at = text.find(first, at + 1)) {
    const std::string_view here = text.substr(at);
    if (std::ranges::any_of(tokens, [here](const std::string& token) { return here.starts_with(token); })) return at;
  }
  return text.size();
}

std::vector<std::string_view> PieceCutter::Cut(std::string_view text) const {
  std::vector<size_t> next;  // where each family is met next
  for (const Family& family : families_) next.push_back(family.Find(text, 0));
  std::vector<std::string_view> pieces;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.size();
    for (size_t i = 0; i < next.size(); ++i) {
      if (next[i] <= begin) next[i] = families_[i].Find(text, begin + 1);
      end = std::min(end, next[i]);
    }
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

size_t TokenCache::KeyHash::operator()(const Key& key) const {
  return XXH3_64bits_withSeed(key.text.data(), key.text.size(), (seed ^ key.salt) + (key.add_special_tokens ? 1 : 0));
}

TokenCache::TokenCache(const Tokenizer& tokenizer, size_t capacity_bytes)
    : tokenizer_(tokenizer),
      cutter_(tokenizer),
      capacity_(capacity_bytes),
      by_text_(/*bucket_count=*/0, KeyHash{(uint64_t{std::random_device()()} << 32) | std::random_device()()}) {}

std::vector<std::string_view> TokenCache::Pieces(std::string_view text, bool add_special_tokens) const {
  // What the tokenizer puts around a text belongs to the whole of it.
  if (add_special_tokens) return {text};
  return cutter_.Cut(text);
}

absl::StatusOr<std::vector<int32_t>> TokenCache::Encode(std::string_view text, bool add_special_tokens,
                                                        std::string_view salt) {
  if (capacity_ == 0) return tokenizer_.Encode(text, add_special_tokens);
  std::vector<Ids> pieces;
  size_t count = 0;
  const uint64_t salted = HashOf(salt);
  for (const std::string_view piece : Pieces(text, add_special_tokens)) {
    BATON_ASSIGN_OR_RETURN(Ids ids, IdsOf({piece, add_special_tokens, salted}));
    count += ids->size();
    pieces.push_back(std::move(ids));
  }
  std::vector<int32_t> out;
  out.reserve(count);
  for (const Ids& ids : pieces) out.insert(out.end(), ids->begin(), ids->end());
  return out;
}

uint64_t TokenCache::HashOf(std::string_view salt) const {
  return salt.empty() ? 0 : XXH3_64bits_withSeed(salt.data(), salt.size(), by_text_.hash_function().seed);
}

TokenCache::Counts TokenCache::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

absl::StatusOr<TokenCache::Ids> TokenCache::IdsOf(Key piece) {
  if (Ids known = Find(piece)) return known;
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> encoded, tokenizer_.Encode(piece.text, piece.add_special_tokens));
  Ids ids = std::make_shared<const std::vector<int32_t>>(std::move(encoded));
  Keep(piece, ids);
  return ids;
}

TokenCache::Ids TokenCache::Find(Key piece) {
  std::lock_guard lock(mutex_);
  const auto found = by_text_.find(piece);
  if (found == by_text_.end()) {
    counts_.tokenized_bytes += static_cast<int64_t>(piece.text.size());
    return nullptr;
  }
  counts_.found_bytes += static_cast<int64_t>(piece.text.size());
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->ids;
}

size_t TokenCache::CostOf(const Entry& entry) {
  constexpr size_t kBookkeeping = 192;  // list node, map slot, the vector and its count: measured sizes, rounded up
  return kBookkeeping + entry.text.size() + entry.ids->size() * sizeof(int32_t);
}

void TokenCache::Keep(Key piece, Ids ids) {
  Entry entry{std::string(piece.text), piece.add_special_tokens, piece.salt, std::move(ids)};
  const size_t cost = CostOf(entry);
  if (cost > capacity_ / 4) return;  // one text must not drive out all others
  std::lock_guard lock(mutex_);
  if (by_text_.contains(piece)) return;  // another thread was faster
  entries_.push_front(std::move(entry));
  by_text_[Key{entries_.front().text, piece.add_special_tokens, piece.salt}] = entries_.begin();
  counts_.kept_bytes += cost;
  while (counts_.kept_bytes > capacity_) {
    const Entry& oldest = entries_.back();
    counts_.kept_bytes -= CostOf(oldest);
    by_text_.erase(Key{oldest.text, oldest.add_special_tokens, oldest.salt});
    entries_.pop_back();
  }
}

}  // namespace baton
