// The engine's forward pass on a real model: prefill of 512 and 2048 tokens, decode of one stream, and decode of 8, 16
// and 32 sequences, in tokens/s. Beside llama.cpp on the same GGUF file when its llama-bench is given; the two take
// turns. --by-op 1 says where the time went.
//   bench_engine MODEL [--threads 2] [--rounds 5] [--only pp512] [--by-op 1] [--dummy 1] [--llama-bench PATH]
//                      [--json FILE]
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "bench/lib/model_run.h"
#include "common/check.h"

using namespace baton;

namespace {

constexpr int kMaxTokens = 2304, kMaxSequences = 32, kChunk = 512, kDecodeContext = 128;

struct Row {
  const char* name;
  int tokens;                       // per run
  std::function<void()> ours;       // one run
  std::vector<std::string> theirs;  // llama-bench arguments; empty: it has no such test
};

// Tokens per second as llama-bench reports them for one test.
double LlamaBench(const std::string& binary, const std::string& model, int threads,
                  const std::vector<std::string>& arguments) {
  std::string command = "'" + binary + "' -m '" + model + "' -r 1 -o json -t " + std::to_string(threads);
  for (const std::string& a : arguments) command += " " + a;
  command += " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  BATON_CHECK(pipe != nullptr, "cannot run ", command);
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  BATON_CHECK(pclose(pipe) == 0, "failed: ", command);
  return nlohmann::json::parse(text).at(0).at("avg_ts").get<double>();
}

std::vector<Row> Rows(bench::ModelRun& run) {
  auto prefill = [&run](int tokens) {
    return [&run, tokens] {
      run.Reset();
      run.Prefill(tokens, kChunk);
    };
  };
  auto decode = [&run](int sequences, int steps) {
    return [&run, sequences, steps] {
      run.Pretend(sequences, kDecodeContext);
      for (int i = 0; i < steps; ++i) run.DecodeStep(sequences);
    };
  };
  return {{"pp512", 512, prefill(512), {"-p 512 -n 0"}},   {"pp2048", 2048, prefill(2048), {"-p 2048 -n 0"}},
          {"tg128", 128, decode(1, 128), {"-p 0 -n 128"}}, {"batch 8", 8 * 32, decode(8, 32), {}},
          {"batch 16", 16 * 32, decode(16, 32), {}},       {"batch 32", 32 * 32, decode(32, 32), {}}};
}

// Milliseconds of a run by operation, and what is left to the decoder and the bench.
void PrintByOp(const bench::TimedOps& ops, const std::vector<double>& rounds) {
  double left = std::accumulate(rounds.begin(), rounds.end(), 0.0);
  const double all = left, runs = static_cast<double>(rounds.size());
  auto print = [&](const std::string& name, double seconds, double calls) {
    std::printf("  %-22s %10.2f ms %5.1f%% %9.1f us a call\n", name.c_str(), 1e3 * seconds / runs, 100 * seconds / all,
                1e6 * seconds / calls);
  };
  for (const auto& [name, spent] : ops.spent()) {
    print(name, spent.seconds, static_cast<double>(spent.calls));
    left -= spent.seconds;
  }
  print("between calls", left, runs);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(
      argc, argv, {"threads", "rounds", "only", "by-op", "dummy", "llama-bench", "json"},
      "MODEL [--threads N] [--rounds N] [--only TEST] [--by-op 1] [--dummy 1] [--llama-bench PATH] [--json FILE]", 1);
  const std::string model = flags.word(0), llama = flags("llama-bench");
  const int threads = flags.Count("threads", 2), rounds = flags.Count("rounds", 5);
  bench::ModelRun run(model, flags("dummy") == "1", threads, kMaxSequences, kMaxTokens, kChunk);
  std::printf("%s, ISA %s, %d threads, compute %s, KV %s, weights %.2f GB\n", model.c_str(), run.traits().isa.c_str(),
              threads, std::string(DTypeName(run.traits().compute)).c_str(),
              std::string(DTypeName(run.traits().kv)).c_str(), static_cast<double>(run.model().weight_bytes()) / 1e9);
  std::printf("%-10s %12s %18s %14s %7s\n", "", "tokens/s", "low … high", "llama.cpp", "ratio");
  nlohmann::json rows_json;
  const std::string only = flags("only");
  const bool by_op = flags("by-op") == "1";
  const std::vector<Row> rows = Rows(run);
  BATON_CHECK(only.empty() || std::ranges::any_of(rows, [&](const Row& row) { return only == row.name; }), "no test \"",
              only, "\": pp512, pp2048, tg128, batch 8, batch 16, batch 32");
  for (const Row& row : rows) {
    if (!only.empty() && only != row.name) continue;
    std::vector<double> ours, theirs;
    row.ours();
    run.ops().Forget();
    for (int round = 0; round < rounds; ++round) {
      ours.push_back(bench::SecondsOf(row.ours));
      if (!llama.empty() && !row.theirs.empty()) theirs.push_back(1 / LlamaBench(llama, model, threads, row.theirs));
    }
    const bench::Timing t = bench::Summary(ours);
    const double rate = row.tokens / t.median;
    std::printf("%-10s %12.1f %8.1f … %7.1f", row.name, rate, row.tokens / t.high, row.tokens / t.low);
    nlohmann::json json{
        {"test", row.name}, {"tokens_per_s", rate}, {"low", row.tokens / t.high}, {"high", row.tokens / t.low}};
    if (!theirs.empty()) {
      const double other = 1 / bench::Summary(theirs).median;
      std::printf(" %14.1f %7.2f", other, rate / other);
      json["llama_cpp_tokens_per_s"] = other;
    }
    std::printf("\n");
    if (by_op) PrintByOp(run.ops(), ours);
    std::fflush(stdout);
    rows_json.push_back(json);
  }
  bench::WriteJson(flags("json"), {{"model", std::filesystem::path(model).filename().string()},
                                   {"isa", run.traits().isa},
                                   {"threads", threads},
                                   {"rows", rows_json}});
}
