// The chained prefix hash that router and workers share: XXH3-128 under a secret derived from the cluster's key, one
// hash per 16-token unit, each over (parent hash, the unit's token ids). The root binds model digest, cache salt and
// LoRA content digest, each with a domain tag and its length, so no two namespaces meet.
//
// The key keeps tenants from building collisions; a collision would be harmless all the same, because a hit is
// verified against token ids. ≤ 1 ns per token. Immutable after construction: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"

namespace baton {

/// Hash of a prefix that ends at a unit's end (or of the empty prefix: a root).
struct PrefixHash {
  uint64_t lo = 0, hi = 0;
  bool operator==(const PrefixHash&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PrefixHash& p) {
    return H::combine(std::move(h), p.lo, p.hi);
  }
};

/// The cluster's 256-bit hash key.
struct HashKey {
  std::array<uint8_t, 32> bytes{};
  bool operator==(const HashKey&) const = default;
  /// From the machine's random source. Unavailable when that fails.
  static absl::StatusOr<HashKey> Random();
  /// From `--hash-key-file`: 64 hex digits, white space around them allowed. InvalidArgument says what is wrong.
  static absl::StatusOr<HashKey> FromFile(const std::string& path);
  static absl::StatusOr<HashKey> FromHex(std::string_view hex);
  std::string Hex() const;
};

/// What a prefix is valid for. Two prefixes share KV only when all three agree.
struct PrefixScope {
  std::string_view model_digest;
  std::string_view salt;         ///< tenant or request salt; empty: shared
  std::string_view lora_digest;  ///< of the adapter's content; empty: none
};

class PrefixHasher {
 public:
  explicit PrefixHasher(const HashKey& key);
  /// Hash of the empty prefix.
  PrefixHash Root(const PrefixScope& scope) const;
  /// Hash of `parent` followed by one unit. `unit` has kUnitTokens token ids.
  PrefixHash Next(const PrefixHash& parent, std::span<const int32_t> unit) const;
  /// `f(hash)` for every whole unit of `tokens`, in order.
  template <class F>
  void Walk(PrefixHash hash, std::span<const int32_t> tokens, F&& f) const {
    for (; tokens.size() >= kUnitTokens; tokens = tokens.subspan(kUnitTokens))
      f(hash = Next(hash, tokens.first(kUnitTokens)));
  }
  /// Hashes of every whole unit of `tokens`, in order.
  std::vector<PrefixHash> Chain(const PrefixHash& root, std::span<const int32_t> tokens) const;

 private:
  alignas(64) std::array<uint8_t, 192> secret_{};
};

}  // namespace baton
