// What a KV cache holds and how a block is laid out: the meaning both sides of a handoff must agree on.
// engine/ allocates by it, kvtransfer/ reshards by it; they know each other only through this header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"

namespace baton {

/// Hash unit and digest unit: 16 tokens everywhere. A block is 16·k tokens.
inline constexpr int kUnitTokens = 16;

/// What a group's layers keep per token.
enum class KvGroupKind : uint8_t {
  kPaged,   ///< every token, for ever
  kWindow,  ///< the last `window_tokens` tokens (sliding-window layers); older blocks are released
  kState,   ///< one fixed-size state per sequence (not used yet)
};

/// One tensor kept per token: K, V, an MLA latent, or a scale.
struct KvPlane {
  enum class Name : uint8_t { kK, kV, kLatent, kScale };
  Name name;
  DType dtype;
  int heads;  ///< KV heads of the whole model in this plane (before tensor parallelism)
  int dim;    ///< elements per head
  /// What the checkpoint says of KV in e4m3, by global layer number: value = stored · scale. Empty: all are 1. Both
  /// sides of a handoff have one checkpoint (its digest), so it is not told.
  std::vector<float> scales{};
  float ScaleOf(int layer) const { return scales.empty() ? 1.0f : scales[static_cast<size_t>(layer)]; }
  int64_t BytesPerTokenHead() const { return static_cast<int64_t>(dim) * static_cast<int64_t>(DTypeBytes(dtype)); }
  bool operator==(const KvPlane&) const = default;
};

/// Layers that share block tables: same kind, same window, same planes.
struct KvGroup {
  std::vector<int> layers;  ///< global layer numbers, ascending
  KvGroupKind kind = KvGroupKind::kPaged;
  int window_tokens = 0;  ///< kWindow only
  std::vector<KvPlane> planes;
  int tokens_per_block = kUnitTokens;  ///< a multiple of kUnitTokens
  bool operator==(const KvGroup&) const = default;
  /// Bytes of one block of this group over all its layers, planes and heads.
  int64_t BlockBytes() const {
    int64_t per_token = 0;
    for (const KvPlane& p : planes) per_token += p.heads * p.BytesPerTokenHead();
    return per_token * tokens_per_block * static_cast<int64_t>(layers.size());
  }
};

/// A ticket has one block list per group. Inside a block, per layer and plane: [tokens_per_block, heads, dim].
struct KvLayout {
  std::vector<KvGroup> groups;
  bool operator==(const KvLayout&) const = default;
  /// Bytes of KV per token (paged and window groups alike).
  int64_t BytesPerToken() const {
    int64_t n = 0;
    for (const KvGroup& g : groups) n += g.BlockBytes() / g.tokens_per_block;
    return n;
  }
};

}  // namespace baton
