// Writes the golden file that binds the emulator: this device's answers to the micro-kernels of tests/conformance.
//   golden FILE
#include <cstdio>

#include "tests/conformance/micro_kernels.h"

int main(int argc, char** argv) {
  using namespace baton;
  if (argc != 2) return std::fprintf(stderr, "usage: golden FILE\n"), 2;
  std::vector<std::pair<std::string, conformance::Words>> answers;
  int differ = 0;
  for (const conformance::MicroKernel& k : conformance::AllMicroKernels()) {
    gpu::Stream stream;
    answers.emplace_back(k.name, k.run(stream));
    const std::string wrong = conformance::Compare(answers.back().second, k.want, k.tolerance);
    std::printf("%-52s %6zu words  %s\n", k.name.c_str(), answers.back().second.size(),
                wrong.empty() ? "as documented" : wrong.c_str());
    differ += !wrong.empty();
  }
  if (!conformance::WriteGolden(argv[1], gpu::CurrentDevice().architecture, answers))
    return std::fprintf(stderr, "cannot write %s\n", argv[1]), 1;
  return differ == 0 ? 0 : 1;
}
