#include <cstring>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/half.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

template <class ToFloat, class From>
void Convert(const uint8_t* in, DType to, void* out, int64_t n, ToFloat to_float, From) {
  float* floats = static_cast<float*>(out);
  uint16_t* halves = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < n; ++i) {
    From x;
    std::memcpy(&x, in + i * sizeof(From), sizeof(From));
    if (to == DType::kF32) {
      floats[i] = to_float(x);
    } else {
      halves[i] = Bf16OfFloat(to_float(x));
    }
  }
}

}  // namespace

void ConvertElements(DType from, const uint8_t* in, DType to, void* out, int64_t n) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n) * DTypeBytes(from));
    return;
  }
  BATON_CHECK(to == DType::kF32 || to == DType::kBF16, "conversion to ", DTypeName(to));
  switch (from) {
    case DType::kF32: return Convert(in, to, out, n, [](float x) { return x; }, float{});
    case DType::kBF16: return Convert(in, to, out, n, FloatOfBf16, uint16_t{});
    case DType::kF16: return Convert(in, to, out, n, FloatOfF16, uint16_t{});
    default: BATON_CHECK(false, "conversion from ", DTypeName(from));
  }
}

std::string ShapeText(absl::Span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace baton::engine
