// How a prompt's KV is cut into segments, which a slot has one or more of.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"

namespace baton::decode_worker {

/// Tokens of a segment, so that one of the widest layer fits a landing slot of `slot_bytes` in any element type, and,
/// where 16 tokens do, the slots of a prefill worker whose default is smaller than ours (a CPU's). InvalidArgument when
/// not even 16 tokens fit ours.
absl::StatusOr<int> PieceTokens(const KvLayout& layout, int64_t slot_bytes);

}  // namespace baton::decode_worker
