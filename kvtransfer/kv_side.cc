#include "kvtransfer/kv_side.h"

#include <string>

#include "common/status.h"

namespace baton {
namespace {

absl::Status CheckPlane(const KvPlane& plane, int tensor_parallel_size) {
  if (plane.heads <= 0 || plane.dim <= 0) {
    return absl::InvalidArgumentError(StrCat("a KV plane has ", plane.heads, " heads of ", plane.dim, " elements"));
  }
  if (const size_t bytes = static_cast<size_t>(plane.dim) * DTypeBytes(plane.dtype); bytes % 8 != 0) {
    return absl::InvalidArgumentError(StrCat("a KV vector of ", plane.dim, " elements of ", DTypeName(plane.dtype),
                                             " takes ", bytes, " bytes: digests are of whole words of 8"));
  }
  const int larger = std::max(plane.heads, tensor_parallel_size), smaller = std::min(plane.heads, tensor_parallel_size);
  if (larger % smaller == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("tensor parallel size ", tensor_parallel_size, " neither divides ",
                                           plane.heads, " KV heads nor is a multiple"));
}

template <class T>
void Differ(std::string& out, const std::string& field, const T& source, const T& target) {
  if (source == target) return;
  out += StrCat(out.empty() ? "" : "; ", field, ": source ", source, ", target ", target);
}

void CompareGroup(std::string& out, const std::string& name, const KvGroup& a, const KvGroup& b) {
  Differ(out, name + "kind", static_cast<int>(a.kind), static_cast<int>(b.kind));
  Differ(out, name + "window_tokens", a.window_tokens, b.window_tokens);
  Differ(out, name + "layers", a.layers.size(), b.layers.size());
  for (size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    Differ(out, StrCat(name, "layers[", i, "]"), a.layers[i], b.layers[i]);
  }
  Differ(out, name + "planes", a.planes.size(), b.planes.size());
  for (size_t i = 0; i < std::min(a.planes.size(), b.planes.size()); ++i) {
    const std::string plane = StrCat(name, "planes[", i, "].");
    Differ(out, plane + "name", static_cast<int>(a.planes[i].name), static_cast<int>(b.planes[i].name));
    Differ(out, plane + "heads", a.planes[i].heads, b.planes[i].heads);
    Differ(out, plane + "dim", a.planes[i].dim, b.planes[i].dim);
  }
}

}  // namespace

IntRange KvSide::HeadsOf(int rank, const KvPlane& plane) const {
  const int tp = TpRank(rank);
  if (tensor_parallel_size > plane.heads) {
    const int head = tp / (tensor_parallel_size / plane.heads);
    return {head, head + 1};
  }
  const int each = plane.heads / tensor_parallel_size;
  return {tp * each, (tp + 1) * each};
}

absl::Status CheckSide(const KvSide& side) {
  if (side.tensor_parallel_size < 1) {
    return absl::InvalidArgumentError(StrCat("tensor parallel size ", side.tensor_parallel_size, " is not positive"));
  }
  if (side.tensor_parallel_size > kMaxTensorParallelSize || side.stages() > kMaxStages) {
    return absl::InvalidArgumentError(StrCat("tensor parallel size ", side.tensor_parallel_size, ", ", side.stages(),
                                             " stages: at most ", kMaxTensorParallelSize, " and ", kMaxStages));
  }
  if (side.stages() < 1 || side.stage_layers.front() != 0) {
    return absl::InvalidArgumentError("pipeline stages must start at layer 0 and be at least one");
  }
  for (size_t i = 1; i < side.stage_layers.size(); ++i) {
    if (side.stage_layers[i] <= side.stage_layers[i - 1]) {
      return absl::InvalidArgumentError(StrCat("pipeline stage ", i - 1, " begins at layer ", side.stage_layers[i - 1],
                                               " and ends at ", side.stage_layers[i]));
    }
  }
  for (const KvGroup& group : side.layout.groups) {
    if (group.kind == KvGroupKind::kState) return absl::FailedPreconditionError("state groups cannot be transferred");
    if (group.tokens_per_block <= 0 || group.tokens_per_block % kUnitTokens != 0) {
      return absl::InvalidArgumentError(
          StrCat("a block of ", group.tokens_per_block, " tokens is not a multiple of ", kUnitTokens));
    }
    for (const KvPlane& plane : group.planes) BATON_RETURN_IF_ERROR(CheckPlane(plane, side.tensor_parallel_size));
    for (int layer : group.layers) {
      if (layer >= 0 && layer < side.stage_layers.back()) continue;
      return absl::InvalidArgumentError(StrCat("layer ", layer, " lies outside ", side.stage_layers.back(), " layers"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameMeaning(const KvLayout& source, const KvLayout& target) {
  std::string differences;
  Differ(differences, "groups", source.groups.size(), target.groups.size());
  for (size_t g = 0; g < std::min(source.groups.size(), target.groups.size()); ++g) {
    CompareGroup(differences, StrCat("groups[", g, "]."), source.groups[g], target.groups[g]);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("KV layouts differ: ", differences));
}

}  // namespace baton
