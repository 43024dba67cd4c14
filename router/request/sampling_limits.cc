#include "router/request/sampling_limits.h"

#include <cmath>
#include <limits>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using MaybeError = std::optional<ApiError>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string Text(double v) { return StrCat(v); }

MaybeError Range(const char* name, const std::optional<float>& v, double low, double high, bool low_open = false) {
  if (!v) return std::nullopt;
  if (std::isfinite(*v) && *v <= high && (low_open ? *v > low : *v >= low)) return std::nullopt;
  return BadRequest(StrCat("`", name, "` must be in ", low_open ? "(" : "[", Text(low), ", ",
                           high == kNoLimit ? "infinity)" : Text(high) + "]", ", got ", Text(*v), "."),
                    name);
}

}  // namespace

std::optional<ApiError> CheckSamplingNumbers(const SamplingOptions& s) {
  if (auto e = Range("temperature", s.temperature, 0, kNoLimit)) return e;
  if (auto e = Range("top_p", s.top_p, 0, 1, true)) return e;
  if (auto e = Range("min_p", s.min_p, 0, 1)) return e;
  if (auto e = Range("presence_penalty", s.presence_penalty, -2, 2)) return e;
  if (auto e = Range("frequency_penalty", s.frequency_penalty, -2, 2)) return e;
  if (auto e = Range("repetition_penalty", s.repetition_penalty, 0, kNoLimit, true)) return e;
  if (s.top_k && *s.top_k < -1)
    return BadRequest(StrCat("`top_k` must be -1 or 0 (all), or at least 1, got ", *s.top_k, "."), "top_k");
  for (const auto& [id, bias] : s.logit_bias) {
    if (!(bias >= -100 && bias <= 100)) {
      return BadRequest(StrCat("`logit_bias` of token ", id, " must be in [-100, 100], got ", Text(bias), "."),
                        "logit_bias");
    }
  }
  return std::nullopt;
}

}  // namespace baton::router
