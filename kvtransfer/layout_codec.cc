#include "kvtransfer/layout_codec.h"

#include <string>

#include "common/status.h"

namespace baton {
namespace {

constexpr uint32_t kMaxGroups = 64, kMaxLayers = 4096, kMaxPlanes = 8, kMaxHeads = 4096, kMaxDim = 65536,
                   kMaxTokens = 1 << 24;

absl::Status AtMost(const char* field, uint64_t value, uint64_t most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("kv_layout: ", field, " is ", value, ", at most ", most));
}

absl::StatusOr<DType> DTypeOf(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::kU8); ++i) {
    if (DTypeName(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(StrCat("kv_layout: unknown dtype of ", name.size(), " characters"));
}

absl::StatusOr<KvPlane> DecodePlane(const v1::KvPlane& in) {
  KvPlane plane{};
  if (in.name() < v1::KvPlane::NAME_K || in.name() > v1::KvPlane::NAME_SCALE) {
    return absl::InvalidArgumentError(StrCat("kv_layout: plane name ", static_cast<int>(in.name())));
  }
  plane.name = static_cast<KvPlane::Name>(in.name() - 1);
  BATON_ASSIGN_OR_RETURN(plane.dtype, DTypeOf(in.dtype()));
  BATON_RETURN_IF_ERROR(AtMost("heads", in.heads(), kMaxHeads));
  BATON_RETURN_IF_ERROR(AtMost("dim", in.dim(), kMaxDim));
  plane.heads = static_cast<int>(in.heads());
  plane.dim = static_cast<int>(in.dim());
  return plane;
}

absl::StatusOr<KvGroup> DecodeGroup(const v1::KvGroup& in) {
  KvGroup group;
  BATON_RETURN_IF_ERROR(AtMost("layers", static_cast<uint64_t>(in.layers_size()), kMaxLayers));
  for (uint32_t layer : in.layers()) {
    BATON_RETURN_IF_ERROR(AtMost("layer", layer, kMaxLayers));
    if (!group.layers.empty() && static_cast<int>(layer) <= group.layers.back()) {
      return absl::InvalidArgumentError(StrCat("kv_layout: layer ", layer, " after ", group.layers.back()));
    }
    group.layers.push_back(static_cast<int>(layer));
  }
  if (in.kind() < v1::KV_GROUP_KIND_PAGED || in.kind() > v1::KV_GROUP_KIND_STATE) {
    return absl::InvalidArgumentError(StrCat("kv_layout: group kind ", static_cast<int>(in.kind())));
  }
  group.kind = static_cast<KvGroupKind>(in.kind() - 1);
  BATON_RETURN_IF_ERROR(AtMost("window_tokens", in.window_tokens(), kMaxTokens));
  BATON_RETURN_IF_ERROR(AtMost("tokens_per_block", in.tokens_per_block(), kMaxTokens));
  BATON_RETURN_IF_ERROR(AtMost("planes", static_cast<uint64_t>(in.planes_size()), kMaxPlanes));
  group.window_tokens = static_cast<int>(in.window_tokens());
  group.tokens_per_block = static_cast<int>(in.tokens_per_block());
  for (const v1::KvPlane& plane : in.planes()) {
    BATON_ASSIGN_OR_RETURN(group.planes.emplace_back(), DecodePlane(plane));
  }
  return group;
}

}  // namespace

v1::KvLayout EncodeLayout(const KvLayout& layout) {
  v1::KvLayout out;
  for (const KvGroup& group : layout.groups) {
    v1::KvGroup& g = *out.add_groups();
    for (int layer : group.layers) g.add_layers(static_cast<uint32_t>(layer));
    g.set_kind(static_cast<v1::KvGroupKind>(static_cast<int>(group.kind) + 1));
    g.set_window_tokens(static_cast<uint32_t>(group.window_tokens));
    g.set_tokens_per_block(static_cast<uint32_t>(group.tokens_per_block));
    for (const KvPlane& plane : group.planes) {
      v1::KvPlane& p = *g.add_planes();
      p.set_name(static_cast<v1::KvPlane::Name>(static_cast<int>(plane.name) + 1));
      p.set_dtype(std::string(DTypeName(plane.dtype)));
      p.set_heads(static_cast<uint32_t>(plane.heads));
      p.set_dim(static_cast<uint32_t>(plane.dim));
    }
  }
  return out;
}

absl::StatusOr<KvLayout> DecodeLayout(const v1::KvLayout& in) {
  BATON_RETURN_IF_ERROR(AtMost("groups", static_cast<uint64_t>(in.groups_size()), kMaxGroups));
  KvLayout layout;
  for (const v1::KvGroup& group : in.groups()) {
    BATON_ASSIGN_OR_RETURN(layout.groups.emplace_back(), DecodeGroup(group));
  }
  return layout;
}

}  // namespace baton
