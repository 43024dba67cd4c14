#include "router/request/sampling_limits.h"

#include <charconv>
#include <cmath>

#include "common/str_cat.h"

namespace baton::router {
namespace {

/// The shortest text that is read as this number: what a client has sent, as it was most likely written.
template <class Number>
std::string ShortestNumber(Number v) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), v).ptr};
}

ApiError NotIn(const SamplingField& f, const std::string& value) {
  return BadRequest(StrCat("`", f.name, "` must be in ", f.low_open ? "(" : "[", ShortestNumber(f.low), ", ",
                           f.high == kNoLimit ? "infinity)" : ShortestNumber(f.high) + "]", ", got ", value, "."),
                    std::string(f.name));
}

std::optional<ApiError> Check(const SamplingField& f, const std::optional<float>& v) {
  if (!v) return std::nullopt;
  if (std::isfinite(*v) && *v <= f.high && (f.low_open ? *v > f.low : *v >= f.low)) return std::nullopt;
  return NotIn(f, ShortestNumber(*v));
}

std::optional<ApiError> Check(const SamplingField& f, const std::optional<int32_t>& v) {
  if (!v || f.at_least.empty() || *v >= f.low) return std::nullopt;
  return BadRequest(StrCat("`", f.name, "` must be ", f.at_least, ", got ", *v, "."), std::string(f.name));
}

std::optional<ApiError> Check(const SamplingField& f, const std::vector<std::pair<int32_t, float>>& biases) {
  for (const auto& [id, bias] : biases) {
    if (bias >= f.low && bias <= f.high) continue;
    return BadRequest(StrCat("`", f.name, "` of token ", id, " must be in [", ShortestNumber(f.low), ", ",
                             ShortestNumber(f.high), "], got ", ShortestNumber(bias), "."),
                      std::string(f.name));
  }
  return std::nullopt;
}

// Every value of these types is in range, or only CheckCounts and the vocabulary can tell.
std::optional<ApiError> Check(const SamplingField&, const std::optional<uint64_t>&) { return std::nullopt; }
std::optional<ApiError> Check(const SamplingField&, const std::optional<bool>&) { return std::nullopt; }
std::optional<ApiError> Check(const SamplingField&, int32_t) { return std::nullopt; }
std::optional<ApiError> Check(const SamplingField&, const std::vector<int32_t>&) { return std::nullopt; }

}  // namespace

ApiError NoFloat(const SamplingField& field, const std::string& number) { return NotIn(field, number); }

std::optional<ApiError> CheckSamplingNumbers(const SamplingOptions& sampling) {
  std::optional<ApiError> first;
  VisitSampling([&](auto member, const SamplingField& field) {
    if (!first) first = Check(field, sampling.*member);
  });
  return first;
}

}  // namespace baton::router
