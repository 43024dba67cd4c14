#include "bench/router/index.h"

#include <cstdio>
#include <random>

#include "absl/types/span.h"
#include "bench/lib/measure.h"
#include "common/prefix_hash.h"
#include "router/index/worker_prefixes.h"

namespace baton::bench {

namespace {

/// Keys of chains, drawn from a seed.
std::vector<std::vector<uint64_t>> Chains(size_t count, size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<uint64_t>> chains(count, std::vector<uint64_t>(length));
  for (auto& chain : chains) {
    for (uint64_t& key : chain) key = random();
  }
  return chains;
}

/// As BenchIndex, with so many workers: each chain is held by four workers drawn at random, two of them to a depth
/// drawn at random; another 16 chains by all of them, each to a depth of its own.
nlohmann::json BenchManyWorkers(int workers) {
  constexpr size_t kUnits = 1 << 20, kChain = 256;
  const auto chains = Chains(kUnits / kChain, kChain, 2);
  const auto known_to_all = Chains(16, kChain, 3);
  router::WorkerPrefixes index(int64_t{64} << 20);
  std::mt19937_64 random(4);
  size_t stored = 0;
  const double store_s = SecondsOf([&] {
    for (const auto& chain : chains) {
      for (size_t holder = 0; holder < 4; ++holder) {
        const size_t depth = holder < 2 ? kChain : 1 + random() % kChain;
        stored += depth;
        index.Store(static_cast<int>(random() % static_cast<uint64_t>(workers)), absl::MakeSpan(chain).first(depth));
      }
    }
  });
  const double bytes = static_cast<double>(index.size_bytes()) / static_cast<double>(index.size_units());
  const double share_s = SecondsOf([&] {
    for (const auto& chain : known_to_all) {
      for (int worker = 0; worker < workers; ++worker) {
        index.Store(worker, absl::MakeSpan(chain).first(1 + static_cast<size_t>(worker) % kChain));
      }
    }
  });
  size_t found = 0;
  const auto find_us = [&](const std::vector<std::vector<uint64_t>>& all, int rounds) {
    const double seconds = SecondsOf([&] {
      for (int round = 0; round < rounds; ++round) {
        for (const auto& chain : all) found += index.Match(chain, router::WorkerSet::All())[0];
      }
    });
    return 1e6 * seconds / (rounds * static_cast<double>(all.size()));
  };
  nlohmann::json out = {{"workers", workers},
                        {"store_ns_per_block", 1e9 * store_s / static_cast<double>(stored)},
                        {"store_shared_ns_per_block", 1e9 * share_s / (16.0 * workers * (1 + kChain) / 2)},
                        {"bytes_per_block", bytes},
                        {"find_us", find_us(chains, 5)},
                        {"find_every_depth_us", find_us(known_to_all, 500)},
                        {"shared_sets", index.shared_sets()}};
  std::printf("index of %d workers: %s (found %zu)\n", workers, out.dump().c_str(), found);
  return out;
}

}  // namespace

nlohmann::json BenchIndex() {
  constexpr size_t kBlocks = 1 << 20, kChain = 256;
  const auto chains = Chains(kBlocks / kChain, kChain, 1);
  std::mt19937_64 random(1);
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
      for (const auto& chain : chains) found += index.Match(chain, router::WorkerSet::All())[0];
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
                        {"hash_ns_per_token", 1e9 * hash.median / static_cast<double>(tokens.size())},
                        {"many_workers", {BenchManyWorkers(64), BenchManyWorkers(1024)}}};
  std::printf(
      "index of %zu blocks: store %.0f ns per block (%.0f while it grows), remove %.0f ns, find %.2f µs (chains of "
      "%zu), "
      "%.1f bytes per block, hash %.2f ns per token (found %zu, %zu)\n",
      kBlocks, 1e9 * again_s / kBlocks, 1e9 * store_s / kBlocks, 1e9 * remove_s / kBlocks, out["find_us"].get<double>(),
      kChain, bytes, out["hash_ns_per_token"].get<double>(), found, units);
  return out;
}

}  // namespace baton::bench
