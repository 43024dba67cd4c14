#include "engine/parallel/rank_place.h"

#include <bit>

#include "common/status.h"

namespace baton::engine {
namespace {

IntRange Share(int n, int part, int parts) {
  const auto border = [&](int i) { return static_cast<int>(int64_t{n} * i / parts); };
  return {border(part), border(part + 1)};
}

// Whole heads each, or one head that several ranks keep.
IntRange KvHeads(int heads, int part, int parts) {
  if (parts <= heads) return Share(heads, part, parts);
  const int head = part / (parts / heads);
  return {head, head + 1};
}

absl::Status Bad(std::string_view what, int64_t number, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(what, " ", number, " ", why));
}

absl::Status Divides(std::string_view flag, int parts, std::string_view what, int64_t n) {
  if (n % parts == 0) return absl::OkStatus();
  return Bad(flag, parts, StrCat("does not divide ", n, " ", what));
}

}  // namespace

std::string RankPlace::Name() const {
  return StrCat("rank ", rank(), " (tensor ", tensor_rank, " of ", tensor_size, ", stage ", stage, " of ", stages, ")");
}

RankShape ShapeOf(const ModelConfig& config, const RankPlace& place) {
  const int part = place.tensor_rank, parts = place.tensor_size;
  return {.layers = Share(config.num_layers, place.stage, place.stages),
          .q_heads = Share(config.num_heads, part, parts),
          .kv_heads = KvHeads(config.num_kv_heads, part, parts),
          .inner = Share(config.intermediate_size, part, parts),
          .vocab = Share(config.vocab_size, part, parts)};
}

absl::Status CheckPlace(const ModelConfig& config, const RankPlace& place) {
  constexpr std::string_view kTp = "--tensor-parallel-size", kPp = "--pipeline-parallel-size",
                             kWidth = "--reduction-width";
  const int tp = place.tensor_size, width = place.reduction_width;
  if (tp < 1 || !std::has_single_bit(static_cast<unsigned>(tp))) return Bad(kTp, tp, "is not a power of two");
  if (width < 1 || !std::has_single_bit(static_cast<unsigned>(width)))
    return Bad(kWidth, width, "is not a power of two");
  if (place.stages < 1 || place.stages > config.num_layers) {
    return Bad(kPp, place.stages, StrCat("is not in 1 … ", config.num_layers, ", the model's layers"));
  }
  BATON_RETURN_IF_ERROR(Divides(kTp, tp, "attention heads", config.num_heads));
  if (config.num_kv_heads % tp != 0 && tp % config.num_kv_heads != 0) {
    return Bad(kTp, tp, StrCat("neither divides ", config.num_kv_heads, " KV heads nor is a multiple of them"));
  }
  const int parts = std::max(tp, width);
  const std::string_view flag = width > tp ? kWidth : kTp;
  BATON_RETURN_IF_ERROR(
      Divides(flag, parts, "inputs of the attention's output layer", int64_t{config.num_heads} * config.head_dim));
  BATON_RETURN_IF_ERROR(Divides(flag, parts, "inner elements of the MLP", config.intermediate_size));
  return absl::OkStatus();
}

}  // namespace baton::engine
