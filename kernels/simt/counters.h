// Groups the accesses of a warp's lanes into warp-level requests and counts sectors, bank conflicts and divergence.
// The k-th access of every lane at one source line is one request: exact for code without data-dependent skips.
#pragma once

#include <cstdint>
#include <map>
#include <source_location>
#include <tuple>
#include <vector>

#include "kernels/simt/policy.h"

namespace baton::simt {

class AccessCounter {
 public:
  /// `bytes` 0: a lane that takes part and touches nothing.
  void Global(int warp, int lane, uint64_t address, int bytes, const std::source_location& where) {
    Add(false, warp, lane, address, bytes, where);
  }
  void Shared(int warp, int lane, uint64_t address, int bytes, const std::source_location& where) {
    Add(true, warp, lane, address, bytes, where);
  }
  /// Adds this block's figures to `counters`. Call once, when the block has ended.
  void Finish(Counters& counters, const std::vector<int>& lanes_of_warp);

 private:
  using Site = std::tuple<const char*, unsigned, unsigned>;  ///< file, line, column
  struct Access {
    int lane;
    int bytes;
    uint64_t address;
  };
  /// Wavefronts or sectors of one request.
  struct Cost {
    uint64_t paid = 0, ideal = 0;
  };
  static Cost SharedCost(const std::vector<Access>& accesses);
  static Cost GlobalCost(std::vector<Access> accesses);
  struct Key {
    bool shared;
    Site site;
    int warp;
    uint32_t occurrence;
    auto operator<=>(const Key&) const = default;
  };
  void Add(bool shared, int warp, int lane, uint64_t address, int bytes, const std::source_location& where);

  std::map<std::tuple<Site, int, int, bool>, uint32_t> occurrences_;  ///< of (site, warp, lane)
  std::map<Key, std::vector<Access>> requests_;
};

}  // namespace baton::simt
