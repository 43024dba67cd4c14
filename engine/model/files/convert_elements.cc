#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/half.h"
#include "common/in_parts.h"
#include "common/status.h"
#include "engine/model/files/finite.h"
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

void WeightSource::ReadPart(const WeightPart& part, int64_t first, int64_t count, DType type, void* out) const {
  const int64_t columns = part.rule.columns();
  if (part.columns == columns) return ReadRows(part.rule, part.first_row + first, count, type, out);
  const size_t element = DTypeBytes(type), bytes = static_cast<size_t>(part.columns) * element;
  std::vector<char> row(static_cast<size_t>(columns) * element);
  for (int64_t r = 0; r < count; ++r) {
    ReadRows(part.rule, part.first_row + first + r, 1, type, row.data());
    std::memcpy(static_cast<char*>(out) + static_cast<size_t>(r) * bytes,
                row.data() + static_cast<size_t>(part.first_column) * element, bytes);
  }
}

absl::StatusOr<kernels::QuantizedWeight> WeightSource::TakeCodes(const WeightPart& part) const {
  return absl::FailedPreconditionError(
      StrCat("weight ", static_cast<int>(part.rule.weight), " is not stored in codes"));
}

absl::StatusOr<kernels::QuantizedWeight> WeightSource::ReadCodes(const WeightPart& part) const {
  BATON_ASSIGN_OR_RETURN(kernels::QuantizedWeight codes, TakeCodes(part));
  const std::optional<CodePlace> bad = FirstNotFinite(codes);
  if (!bad) return codes;
  // A group's first input is one that there is.
  const int64_t column = codes.inputs.empty() ? bad->input : codes.inputs[static_cast<size_t>(bad->input)];
  return absl::InvalidArgumentError(
      StrCat(Origin(part.rule, part.first_row + bad->row, part.first_column + column), ": not a finite number"));
}

absl::Status WeightSource::Read(const WeightPart& part, DType type, void* out, int threads) const {
  constexpr int64_t kWorthAThread = 1 << 18;   // elements
  constexpr int64_t kSeenAtOnce = 256 * 1024;  // bytes that a core's cache still has when they are looked at
  const int64_t row_bytes = part.columns * static_cast<int64_t>(DTypeBytes(type)),
                rows = std::max<int64_t>(1, kSeenAtOnce / row_bytes);
  LowestPlace bad;
  InParts(part.rows, std::min<int64_t>(threads, part.elements() / kWorthAThread), [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; row += rows) {
      const int64_t count = std::min(rows, end - row);
      char* const to = static_cast<char*>(out) + row * row_bytes;
      ReadPart(part, row, count, type, to);
      const int64_t at = FirstNotFinite(type, to, count * part.columns);
      if (at >= 0) return bad.Note(row * part.columns + at);
    }
  });
  const std::optional<int64_t> at = bad.found();
  if (!at) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(Origin(part.rule, part.first_row + *at / part.columns, part.first_column + *at % part.columns),
             ": not a finite number in ", DTypeName(type)));
}

std::string ShapeText(absl::Span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace baton::engine
