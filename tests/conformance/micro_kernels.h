// One micro-kernel per function of px: what the hardware does, in a few words of output. The same sources run on the
// emulator and, compiled by nvcc, on a device; a device's answers, written once into golden.txt, bind the emulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"

namespace baton::conformance {

using Words = std::vector<uint32_t>;

/// How two answers are compared.
struct Tolerance {
  enum class Kind : uint8_t { kBits, kFloat, kDouble } kind = Kind::kBits;
  int ulps = 0;           ///< units in the last place of a float
  double absolute = 0.0;  ///< either bound suffices
};

struct MicroKernel {
  std::string name;
  Tolerance tolerance;
  std::function<Words(gpu::Stream&)> run;  ///< on the stream's device or emulator; aborts on a launch error
  Words want;  ///< worked out on the host from the function's definition; empty: golden file only
};

std::vector<MicroKernel> WarpKernels();        ///< geometry, barriers, exchange, memory, copies
std::vector<MicroKernel> ArithmeticKernels();  ///< arithmetic, conversions, bits
std::vector<MicroKernel> MatrixKernels();      ///< ldmatrix, mma, TMA, wgmma
std::vector<MicroKernel> AllMicroKernels();

/// "" when equal within the tolerance, else the first difference.
std::string Compare(const Words& got, const Words& want, const Tolerance& tolerance);

/// Golden file: per micro-kernel a line "name count word word …" in hexadecimal; lines with # are comments.
bool WriteGolden(const std::string& path, const std::string& device,
                 const std::vector<std::pair<std::string, Words>>& answers);
std::vector<std::pair<std::string, Words>> ReadGolden(const std::string& path);

void CheckSynchronized(gpu::Stream& stream);

/// Device memory for `n` words, the launch, and the words back. The kernel is called with (input, output, more…).
template <typename... Parameters, typename... More>
Words Launch(gpu::Stream& stream, gpu::LaunchConfig config, size_t n, const Words& input,
             void (*kernel)(const uint32_t*, uint32_t*, Parameters...), More... more) {
  const gpu::Memory in(input.size() * 4 + 16), out(n * 4);
  stream.Upload(in.data(), input.data(), input.size() * 4);
  gpu::Launch(stream, config, kernel, static_cast<const uint32_t*>(in.data()), static_cast<uint32_t*>(out.data()),
              more...);
  Words words(n);
  stream.CopyAsync(words.data(), out.data(), n * 4);
  CheckSynchronized(stream);
  return words;
}

/// n words without a pattern; the same on every machine.
Words Noise(size_t n, uint32_t seed);

}  // namespace baton::conformance
