#include "router/request/sampling_limits.h"

#include <cmath>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using MaybeError = std::optional<ApiError>;

std::string Text(double v) { return StrCat(v); }

MaybeError Check(const SamplingField& f, const std::optional<float>& v) {
  if (!v) return std::nullopt;
  if (std::isfinite(*v) && *v <= f.high && (f.low_open ? *v > f.low : *v >= f.low)) return std::nullopt;
  return BadRequest(StrCat("`", f.name, "` must be in ", f.low_open ? "(" : "[", Text(f.low), ", ",
                           f.high == kNoLimit ? "infinity)" : Text(f.high) + "]", ", got ", Text(*v), "."),
                    std::string(f.name));
}

MaybeError Check(const SamplingField& f, const std::optional<int32_t>& v) {
  if (!v || f.at_least.empty() || *v >= f.low) return std::nullopt;
  return BadRequest(StrCat("`", f.name, "` must be ", f.at_least, ", got ", *v, "."), std::string(f.name));
}

MaybeError Check(const SamplingField& f, const std::vector<std::pair<int32_t, float>>& biases) {
  for (const auto& [id, bias] : biases) {
    if (bias >= f.low && bias <= f.high) continue;
    return BadRequest(StrCat("`", f.name, "` of token ", id, " must be in [", Text(f.low), ", ", Text(f.high),
                             "], got ", Text(bias), "."),
                      std::string(f.name));
  }
  return std::nullopt;
}

// Every value of these types is in range, or only CheckCounts and the vocabulary can tell.
MaybeError Check(const SamplingField&, const std::optional<uint64_t>&) { return std::nullopt; }
MaybeError Check(const SamplingField&, const std::optional<bool>&) { return std::nullopt; }
MaybeError Check(const SamplingField&, int32_t) { return std::nullopt; }
MaybeError Check(const SamplingField&, const std::vector<int32_t>&) { return std::nullopt; }

}  // namespace

std::optional<ApiError> CheckSamplingNumbers(const SamplingOptions& sampling) {
  MaybeError first;
  VisitSampling([&](auto member, const SamplingField& field) {
    if (!first) first = Check(field, sampling.*member);
  });
  return first;
}

}  // namespace baton::router
