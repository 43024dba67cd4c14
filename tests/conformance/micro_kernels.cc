#include "tests/conformance/micro_kernels.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "common/check.h"

namespace baton::conformance {
namespace {

/// Floats in order, subnormals as zero (the approximate functions flush them), every NaN alike.
int64_t OrderOf(float x) {
  if (std::fabs(x) < 0x1p-126f) return 0;
  const uint32_t bits = px::BitCast<uint32_t>(x);
  return (bits >> 31) != 0 ? -static_cast<int64_t>(bits & 0x7FFFFFFFu) : static_cast<int64_t>(bits);
}

bool Near(float got, float want, const Tolerance& t) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
  return std::llabs(OrderOf(got) - OrderOf(want)) <= t.ulps || std::fabs(static_cast<double>(got) - want) <= t.absolute;
}

double DoubleAt(const Words& w, size_t i) {
  double x;
  std::memcpy(&x, w.data() + i, 8);
  return x;
}

}  // namespace

std::string Compare(const Words& got, const Words& want, const Tolerance& t) {
  if (got.size() != want.size()) return std::to_string(got.size()) + " words, want " + std::to_string(want.size());
  const size_t step = t.kind == Tolerance::Kind::kDouble ? 2 : 1;
  for (size_t i = 0; i < got.size(); i += step) {
    std::ostringstream at;
    at << "word " << i << ": got ";
    if (t.kind == Tolerance::Kind::kBits) {
      if (got[i] == want[i]) continue;
      at << std::hex << got[i] << ", want " << want[i];
    } else if (t.kind == Tolerance::Kind::kFloat) {
      const float g = px::BitCast<float>(got[i]), w = px::BitCast<float>(want[i]);
      if (Near(g, w, t)) continue;
      at << g << ", want " << w;
    } else {
      const double g = DoubleAt(got, i), w = DoubleAt(want, i);
      if (std::fabs(g - w) <= t.absolute) continue;
      at << g << ", want " << w;
    }
    return at.str();
  }
  return {};
}

void CheckSynchronized(gpu::Stream& stream) {
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
}

Words Noise(size_t n, uint32_t seed) {
  Words words;
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (size_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    words.push_back(static_cast<uint32_t>(state >> 32));
  }
  return words;
}

std::vector<MicroKernel> AllMicroKernels() {
  std::vector<MicroKernel> all = WarpKernels();
  for (auto more : {ArithmeticKernels(), MatrixKernels()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool WriteGolden(const std::string& path, const std::string& device,
                 const std::vector<std::pair<std::string, Words>>& answers) {
  std::ofstream out(path);
  out << "# What a device answers to the micro-kernels of tests/conformance. Device: " << device << "\n" << std::hex;
  for (const auto& [name, words] : answers) {
    out << name << ' ' << words.size();
    for (uint32_t w : words) out << ' ' << w;
    out << '\n';
  }
  return static_cast<bool>(out.flush());
}

std::vector<std::pair<std::string, Words>> ReadGolden(const std::string& path) {
  std::vector<std::pair<std::string, Words>> answers;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name;
    size_t count = 0;
    fields >> name >> std::hex >> count;
    Words words;
    for (uint32_t w; words.size() < count && fields >> w;) words.push_back(w);
    answers.emplace_back(name, words);
  }
  return answers;
}

}  // namespace baton::conformance
