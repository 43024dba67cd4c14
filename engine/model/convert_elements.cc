#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

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

void WeightSource::Read(const WeightRule& rule, DType type, void* out, int threads) const {
  constexpr int64_t kWorthAThread = 1 << 18;  // elements
  const int64_t parts = std::clamp<int64_t>(rule.elements() / kWorthAThread, 1, std::max(threads, 1));
  const int64_t row_bytes = rule.columns() * static_cast<int64_t>(DTypeBytes(type));
  auto read = [&](int64_t part) {
    const int64_t first = rule.rows() * part / parts, end = rule.rows() * (part + 1) / parts;
    ReadRows(rule, first, end - first, type, static_cast<char*>(out) + first * row_bytes);
  };
  std::vector<std::jthread> others;
  for (int64_t part = 1; part < parts; ++part) others.emplace_back(read, part);
  read(0);
}

std::string ShapeText(absl::Span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace baton::engine
