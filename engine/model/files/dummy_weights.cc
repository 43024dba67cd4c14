// `--load-format dummy`: random weights without a file, for smoke tests, benches and goldens.
//
// Element i of a tensor is a function of (seed, name, i), so a script can make the same weights elsewhere:
//   key   = FNV-1a-64(name below "model.") + seed · 0x9E3779B97F4A7C15
//   bits  = 16-bit lane i mod 4 (lowest first) of SplitMix64's output for state key + (i / 4) · 0x9E3779B97F4A7C15
//   value = bf16((bits - 32767.5) · float(√3 · deviation / 32768) + centre)
// Matrices have deviation 1/√columns, biases 0.1, norms 0.1 around 1 (less the family's offset).
#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/half.h"
#include "common/str_cat.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t SplitMix(uint64_t state) {
  uint64_t z = state + kGolden;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool IsBias(Weight w) {
  return w == Weight::kQueryBias || w == Weight::kKeyBias || w == Weight::kValueBias || w == Weight::kOutputBias;
}

class DummyWeights : public WeightSource {
 public:
  DummyWeights(const ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}
  absl::Status Check(const WeightRule&) const override { return absl::OkStatus(); }
  DType NativeType(const WeightRule&) const override { return DType::kBF16; }
  std::vector<StoredWeight> Stored(const WeightRule&) const override {
    return {{"dummy", {reinterpret_cast<const uint8_t*>(&seed_), sizeof(seed_)}}};
  }
  int64_t Unused(int64_t) const override { return 0; }
  std::string Origin(const WeightRule& rule, int64_t row, int64_t column) const override {
    return StrCat("random ", HfName(config_, rule), ShapeText({row, column}));
  }

  void ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const override {
    BATON_CHECK(type == DType::kBF16 || type == DType::kF32, "dummy weights as ", DTypeName(type));
    const uint64_t key = Fnv1a(HfName(config_, rule)) + seed_ * kGolden;
    const bool matrix = rule.shape.size() == 2;
    const double deviation = matrix ? 1.0 / std::sqrt(static_cast<double>(rule.shape[1])) : 0.1;
    const float scale = static_cast<float>(std::sqrt(3.0) * deviation / 32768);
    const float centre = matrix || IsBias(rule.weight) ? 0.0f : 1.0f - config_.norm_offset;
    const int64_t begin = first * rule.columns(), end = begin + count * rule.columns();
    for (int64_t four = begin / 4; four * 4 < end; ++four) {
      const uint64_t bits = SplitMix(key + static_cast<uint64_t>(four) * kGolden);
      for (int64_t i = std::max(begin, four * 4); i < std::min(end, four * 4 + 4); ++i) {
        const float x = static_cast<float>((bits >> (16 * (i % 4))) & 0xffff) - 32767.5f;
        const uint16_t value =
            Bf16OfFloat(x * scale + centre);  // two roundings: this file is built without contraction
        if (type == DType::kBF16) {
          static_cast<uint16_t*>(out)[i - begin] = value;
        } else {
          static_cast<float*>(out)[i - begin] = FloatOfBf16(value);
        }
      }
    }
  }

 private:
  const ModelConfig config_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<DummyWeights>(config, seed);
}

}  // namespace baton::engine
