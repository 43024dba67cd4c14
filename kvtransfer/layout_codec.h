// KvLayout on the wire. Pure; any thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "proto/types.pb.h"

namespace baton {

v1::KvLayout EncodeLayout(const KvLayout& layout);

/// InvalidArgument names the field that is unknown or beyond any real model.
absl::StatusOr<KvLayout> DecodeLayout(const v1::KvLayout& layout);

}  // namespace baton
