#include "kernels/quantized/stored_codes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "common/float8.h"
#include "common/half.h"
#include "common/in_parts.h"

namespace baton::kernels {
namespace {

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

constexpr int64_t kNarrowGroup = 32;        // of inputs that are sorted by group and cut anywhere
constexpr int64_t kWorthAThread = 1 << 18;  // codes

}  // namespace

void PackedWords::ReadRow(int64_t output, int64_t first, int64_t count, uint8_t* out) const {
  const int per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  const auto word = [this](int64_t at) { return Load<uint32_t>(data + at * 4); };
  if (along_outputs) {
    const int in_word = static_cast<int>(output % per_word);
    const int shift = bits * (awq_order ? in_word / 2 + in_word % 2 * (per_word / 2) : in_word);
    const int64_t from = output / per_word * output_stride + first * input_stride;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(word(from + i * input_stride) >> shift & mask);
    return;
  }
  BATON_CHECK(!awq_order, "AWQ's order is one of outputs");
  const int64_t from = output * output_stride;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t input = first + i;
    out[i] = static_cast<uint8_t>(word(from + input / per_word * input_stride) >> (bits * (input % per_word)) & mask);
  }
}

int64_t StoredCodes::GroupOf(int64_t input) const {
  return group_of_input == nullptr ? input / group : Load<int32_t>(group_of_input + input * 4);
}

int StoredCodes::Zero(int64_t output, int64_t g) const {
  if (kind == CodeKind::kE4m3) return 0;
  if (zeros.data == nullptr) return 1 << (codes.bits - 1);
  uint8_t stored;
  zeros.ReadRow(output, g, 1, &stored);
  return stored + zero_offset;
}

float StoredCodes::Scale(int64_t output, int64_t g) const {
  const int64_t at = IndexOfScale(output, g);
  switch (scale_type) {
    case DType::kF16: return FloatOfF16(Load<uint16_t>(scales + at * 2));
    case DType::kBF16: return FloatOfBf16(Load<uint16_t>(scales + at * 2));
    case DType::kF32: return Load<float>(scales + at * 4);
    default: BATON_CHECK(false, "scales of ", DTypeName(scale_type));
  }
}

void StoredCodes::ReadRow(int64_t output, int64_t first, int64_t count, float* out) const {
  std::vector<uint8_t> row(static_cast<size_t>(count));
  codes.ReadRow(output, first, count, row.data());
  int64_t g = -1;
  float scale = 0.0f;
  int zero = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t of = GroupOf(first + i); of != g) {
      g = of;
      scale = Scale(output, g);
      zero = Zero(output, g);
    }
    const uint8_t code = row[static_cast<size_t>(i)];
    out[i] = (kind == CodeKind::kE4m3 ? FloatOfE4m3(code) : static_cast<float>(code - zero)) * scale;
  }
}

std::optional<StoredCodes::Layout> StoredCodes::LayoutOf(int64_t first_column, int64_t columns) const {
  if (columns % 8 != 0) return std::nullopt;
  const int64_t last = first_column + columns - 1;
  bool in_order = true;
  for (int64_t k = first_column; k <= last && in_order; ++k) in_order = GroupOf(k) == k / group;
  if (in_order) {
    const bool one = first_column / group == last / group;
    const int64_t shared = one ? columns : std::gcd(std::gcd(group, first_column), columns);
    if (!GroupFits(static_cast<int>(columns), static_cast<int>(shared))) return std::nullopt;
    return Layout{static_cast<int>(shared), {}};
  }
  std::vector<std::vector<int32_t>> members(static_cast<size_t>(groups()));
  for (int64_t i = 0; i < columns; ++i)
    members[static_cast<size_t>(GroupOf(first_column + i))].push_back(static_cast<int32_t>(i));
  const bool whole = std::ranges::all_of(
      members, [&](const auto& of) { return of.empty() || static_cast<int64_t>(of.size()) == group; });
  const bool as_they_are = whole && GroupFits(static_cast<int>(columns), static_cast<int>(group));
  Layout out{static_cast<int>(as_they_are ? group : kNarrowGroup), {}};
  for (const std::vector<int32_t>& of : members) {
    out.inputs.insert(out.inputs.end(), of.begin(), of.end());
    while (out.inputs.size() % static_cast<size_t>(out.group) != 0) out.inputs.push_back(-1);
  }
  return out;
}

QuantizedWeight StoredCodes::Take(int64_t first_row, int64_t rows, int64_t first_column, int64_t columns,
                                  const Layout& layout) const {
  const int64_t width = layout.inputs.empty() ? columns : static_cast<int64_t>(layout.inputs.size());
  const int64_t metas = width / layout.group;
  QuantizedWeight w{codes.bits, static_cast<int>(rows), static_cast<int>(width), layout.group, {}, {}, {}};
  w.kind = kind;
  w.rounding = rounding;
  w.inputs = layout.inputs;
  w.x_columns = layout.inputs.empty() ? 0 : static_cast<int>(columns);
  w.codes.resize(static_cast<size_t>(rows * width));
  w.scales.resize(static_cast<size_t>(rows * metas));
  w.zeros.resize(w.scales.size());
  std::vector<int64_t> groups_taken;
  for (int64_t m = 0; m < metas; ++m) {  // an input's place in a group is never the first one when it is none
    const int64_t at = m * layout.group, column = w.inputs.empty() ? at : w.inputs[static_cast<size_t>(at)];
    groups_taken.push_back(GroupOf(first_column + column));
  }
  InParts(rows, std::min(LoadThreads(), rows * width / kWorthAThread), [&](int64_t first, int64_t end) {
    std::vector<uint8_t> row(static_cast<size_t>(columns));
    for (int64_t r = first; r < end; ++r) {
      codes.ReadRow(first_row + r, first_column, columns, row.data());
      uint8_t* const to = w.codes.data() + r * width;
      if (w.inputs.empty()) {
        std::ranges::copy(row, to);
      } else {
        for (int64_t i = 0; i < width; ++i) {
          const int32_t column = w.inputs[static_cast<size_t>(i)];
          to[i] = column < 0 ? uint8_t{0} : row[static_cast<size_t>(column)];
        }
      }
      auto meta = static_cast<size_t>(r * metas);
      for (const int64_t g : groups_taken) {
        w.scales[meta] = Scale(first_row + r, g);
        w.zeros[meta++] = static_cast<uint16_t>(Zero(first_row + r, g));
      }
    }
  });
  return w;
}

}  // namespace baton::kernels
