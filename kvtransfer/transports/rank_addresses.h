// Where the ranks of a decode worker take KV: each has landing memory of its own, and its lanes end there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

/// What a prefill worker is told of a decode worker. One rank: its LandingAddresses, packed, and nothing else.
struct RankAddresses {
  int tensor_parallel_size = 1;    ///< of the decode worker
  std::vector<int> stage_layers;   ///< as KvSide's; empty: one stage, one rank
  std::vector<std::string> ranks;  ///< by rank, each packed as LandingAddresses

  std::string Pack() const;
  /// InvalidArgument: several ranks, and what is said of them does not fit together.
  static absl::StatusOr<RankAddresses> Parse(std::string_view text);
};

}  // namespace baton
