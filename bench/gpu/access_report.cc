#include "bench/gpu/access_report.h"

#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/check.h"

namespace baton::bench {
namespace {

/// In percent: sectors beyond the bytes' need, wavefronts beyond one per shared request, requests of part of a warp.
struct Rates {
  double sectors = 0, conflicts = 0, divergent = 0;
};

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

Rates RatesOf(const simt::Counters& c) {
  return {Percent(c.global_sectors - c.global_ideal_sectors, c.global_ideal_sectors),
          Percent(c.bank_conflicts, c.shared_requests),
          Percent(c.divergent_requests, c.global_requests + c.shared_requests)};
}

std::map<std::string, Rates> ReadLimits(const std::string& path) {
  std::ifstream file(path);
  BATON_CHECK(file.good(), "cannot read ", path);
  std::map<std::string, Rates> limits;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.starts_with("kernel\t")) continue;
    std::istringstream cells(line);
    std::string kernel, reason;
    Rates r;
    cells >> kernel >> r.sectors >> r.conflicts >> r.divergent >> reason;
    BATON_CHECK(!cells.fail(), path, ": five columns are needed: ", line);
    limits[kernel] = r;
  }
  return limits;
}

}  // namespace

int AccessReport::Print(const std::string& limits_path, bool complete) const {
  const std::map<std::string, Rates> limits = ReadLimits(limits_path);
  int bad = 0;
  std::printf("\n%-24s %9s %9s %8s  %9s %10s  %10s  %s\n", "accesses of", "sectors", "ideal", "beyond", "shared",
              "conflicts", "divergent", "worst place");
  for (const auto& [kernel, c] : kernels_) {
    const Rates r = RatesOf(c);
    std::string verdict;
    if (const auto limit = limits.find(kernel); limit == limits.end()) {
      verdict = "NOT IN THE TABLE";
    } else {
      if (r.sectors > limit->second.sectors) verdict += " SECTORS";
      if (r.conflicts > limit->second.conflicts) verdict += " CONFLICTS";
      if (r.divergent > limit->second.divergent) verdict += " DIVERGENCE";
    }
    bad += !verdict.empty();
    std::printf("%-24s %9lu %9lu %7.1f%%  %9lu %9.1f%%  %9.1f%%  %s%s\n", kernel.c_str(), c.global_sectors,
                c.global_ideal_sectors, r.sectors, c.shared_requests, r.conflicts, r.divergent, c.worst_site.c_str(),
                verdict.c_str());
  }
  for (const auto& [kernel, limit] : limits) {
    if (!complete || kernels_.contains(kernel)) continue;
    std::printf("%-24s in %s, and no case ran it\n", kernel.c_str(), limits_path.c_str());
    ++bad;
  }
  std::printf("%d beyond the limits of %s\n", bad, limits_path.c_str());
  return bad;
}

}  // namespace baton::bench
