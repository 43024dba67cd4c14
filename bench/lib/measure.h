// Paired timings: the contenders take turns, each figure is a median, and its spread is kept.
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/json.h"

namespace baton::bench {

struct Timing {
  double median = 0, low = 0, high = 0;  ///< seconds
};

inline double SecondsOf(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline Timing Summary(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

/// Each contender is run once to warm up, then `rounds` times in turn; short ones are repeated to last ≥ 2 ms a sample.
inline std::vector<Timing> Alternate(const std::vector<std::function<void()>>& contenders, int rounds = 7) {
  std::vector<int> repeats;
  for (const auto& run : contenders) {
    run();
    repeats.push_back(std::max(1, static_cast<int>(2e-3 / std::max(1e-7, SecondsOf(run)))));
  }
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const double all = SecondsOf([&] {
        for (int r = 0; r < repeats[i]; ++r) contenders[i]();
      });
      seconds[i].push_back(all / repeats[i]);
    }
  }
  std::vector<Timing> out;
  for (auto& s : seconds) out.push_back(Summary(std::move(s)));
  return out;
}

inline void WriteJson(const std::string& path, const nlohmann::json& json) {
  if (!path.empty()) std::ofstream(path) << json.dump(1) << "\n";
}

}  // namespace baton::bench
