#include "kvtransfer/transports/rank_addresses.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "kvtransfer/kv_side.h"

namespace baton {
namespace {

constexpr std::string_view kRanksMark = "kvranks1";
constexpr size_t kMostRanks = 4096;  ///< each is dialled

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("landing addresses of several ranks: ", what));
}

}  // namespace

std::string RankAddresses::Pack() const {
  if (ranks.size() == 1) return ranks.front();
  return StrCat(kRanksMark, "\n", tensor_parallel_size, "\n", absl::StrJoin(stage_layers, ","), "\n",
                absl::StrJoin(ranks, "\n"));
}

absl::StatusOr<RankAddresses> RankAddresses::Parse(std::string_view text) {
  if (!text.starts_with(kRanksMark)) return RankAddresses{.ranks = {std::string(text)}};
  const auto said = std::ranges::count(text, '\n') - 2;
  if (said > static_cast<int64_t>(kMostRanks)) return Bad(StrCat(said, " ranks, at most ", kMostRanks));
  std::vector<std::string> lines = absl::StrSplit(AbslView(text), '\n');
  RankAddresses out;
  if (lines.size() < 4 || !absl::SimpleAtoi(lines[1], &out.tensor_parallel_size) || out.tensor_parallel_size < 1 ||
      out.tensor_parallel_size > kMaxTensorParallelSize)
    return Bad(StrCat(lines.size(), " lines, or a tensor parallel size that is none"));
  for (const absl::string_view border : absl::StrSplit(lines[2], ',')) {
    int layer = 0;
    if (!absl::SimpleAtoi(border, &layer)) return Bad("a stage border is no number");
    out.stage_layers.push_back(layer);
  }
  out.ranks.assign(std::make_move_iterator(lines.begin() + 3), std::make_move_iterator(lines.end()));
  const size_t stages = out.stage_layers.size() - 1;
  if (out.ranks.size() != stages * static_cast<size_t>(out.tensor_parallel_size))
    return Bad(StrCat(out.ranks.size(), " of them, ", stages, " stages of ", out.tensor_parallel_size, " ranks"));
  return out;
}

}  // namespace baton
