// Writes the golden file that binds the emulator: this device's answers to the micro-kernels of tests/conformance.
//   golden FILE
// A micro-kernel that crashes or hangs is named and left out of the file; the others go on.
#include <cstdio>
#include <cstring>

#include "bench/gpu/run_each.h"
#include "tests/conformance/micro_kernels.h"

namespace baton::bench {
namespace {

using conformance::Words;

std::string Bytes(const Words& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)};
}
Words WordsOf(const std::string& bytes) {
  Words words(bytes.size() / sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

int Run(const char* path) {
  if (SaysThereIsNoDevice("golden")) return kNoDevice;
  const std::vector<conformance::MicroKernel> kernels = conformance::AllMicroKernels();
  std::vector<std::pair<std::string, Words>> answers;
  size_t differ = 0;
  constexpr unsigned kSeconds = 30;
  RunEach(
      kernels.size(), kSeconds,
      [&](size_t i) {
        gpu::Stream stream;
        return Bytes(kernels[i].run(stream));
      },
      [&](size_t i, const Attempt& a) {
        const conformance::MicroKernel& k = kernels[i];
        const Words words = WordsOf(a.result);
        const std::string wrong = a.death.empty() ? conformance::Compare(words, k.want, k.tolerance) : a.death;
        std::printf("%-52s %6zu words  %s\n", k.name.c_str(), words.size(),
                    wrong.empty() ? "as documented" : wrong.c_str());
        std::fflush(stdout);
        differ += !wrong.empty();
        if (a.death.empty()) answers.emplace_back(k.name, words);
      });
  if (!conformance::WriteGolden(path, gpu::CurrentDevice().architecture, answers))
    return std::fprintf(stderr, "golden: cannot write %s\n", path), kSomethingWrong;
  return differ == 0 ? kAllRight : kSomethingWrong;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: golden FILE\n"), baton::bench::kBadUsage;
  return baton::bench::Run(argv[1]);
}
