#include "bench/router/index.h"

#include <cstdio>
#include <random>

#include "bench/lib/measure.h"
#include "common/prefix_hash.h"
#include "router/index/worker_prefixes.h"

namespace baton::bench {

nlohmann::json BenchIndex() {
  constexpr size_t kBlocks = 1 << 20, kChain = 256;
  std::mt19937_64 random(1);
  std::vector<std::vector<uint64_t>> chains(kBlocks / kChain, std::vector<uint64_t>(kChain));
  for (auto& chain : chains) {
    for (uint64_t& key : chain) key = random();
  }
  router::WorkerPrefixes index(int64_t{64} << 20);
  const auto store_all = [&] {
    for (size_t i = 0; i < chains.size(); ++i) index.Store(static_cast<int>(i % 8), chains[i]);
  };
  const double store_s = SecondsOf(store_all);  // growing from empty
  const auto remove_all = [&] {
    for (size_t i = 0; i < chains.size(); ++i) index.Remove(static_cast<int>(i % 8), chains[i]);
  };
  size_t found = 0;
  const double find_s = SecondsOf([&] {
    for (int round = 0; round < 10; ++round) {
      for (const auto& chain : chains) found += index.Match(chain, ~uint64_t{0})[0];
    }
  });
  const double bytes = static_cast<double>(index.size_bytes()) / static_cast<double>(index.size_units());
  const double remove_s = SecondsOf(remove_all);
  const double again_s = SecondsOf(store_all);  // a table that has its size
  std::vector<int32_t> tokens(1 << 20);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 50000);
  const PrefixHasher hasher(HashKey::Random().value());
  size_t units = 0;
  const Timing hash = Alternate({[&] { units += hasher.Chain(hasher.Root({}), tokens).size(); }})[0];
  nlohmann::json out = {{"store_ns_per_block", 1e9 * again_s / kBlocks},
                        {"store_growing_ns_per_block", 1e9 * store_s / kBlocks},
                        {"remove_ns_per_block", 1e9 * remove_s / kBlocks},
                        {"find_us", 1e6 * find_s / (10.0 * static_cast<double>(chains.size()))},
                        {"bytes_per_block", bytes},
                        {"hash_ns_per_token", 1e9 * hash.median / static_cast<double>(tokens.size())}};
  std::printf(
      "index of %zu blocks: store %.0f ns per block (%.0f while it grows), remove %.0f ns, find %.2f µs (chains of "
      "%zu), "
      "%.1f bytes per block, hash %.2f ns per token (found %zu, %zu)\n",
      kBlocks, 1e9 * again_s / kBlocks, 1e9 * store_s / kBlocks, 1e9 * remove_s / kBlocks, out["find_us"].get<double>(),
      kChain, bytes, out["hash_ns_per_token"].get<double>(), found, units);
  return out;
}

}  // namespace baton::bench
