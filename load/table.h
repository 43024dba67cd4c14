// Several runs side by side: a row for each server and load, and what one server is beside another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "load/measured.h"

namespace baton::load {

/// Medians over the runs of one server under one load. Times in ms.
struct TableRow {
  std::string target;
  LoadPoint point;
  int64_t runs = 0, offered = 0, failed = 0;  ///< of all runs
  std::optional<double> good_share;           ///< of what was offered
  double requests_per_s = 0, tokens_per_s = 0;
  double spread = 0;  ///< of tokens_per_s: (most − least) / median
  double ttft_p50 = 0, ttft_p99 = 0, tpot_p50 = 0, tpot_p99 = 0, e2el_p50 = 0;
  bool late = false;  ///< this client was, in one of the runs
  /// No other row has both more tokens per second in all and for each user.
  bool on_front = false;

  double user_tokens_per_s() const { return tpot_p50 > 0 ? 1000 / tpot_p50 : 0; }
};

/// In the order in which they were measured first.
std::vector<TableRow> TableOf(const std::vector<Measured>& measured);

/// One server beside the first one under the same load; ratios are medians of the rounds' own ratios.
struct Beside {
  std::string target, first;
  LoadPoint point;
  double tokens_per_s = 0, tokens_least = 0, tokens_most = 0;  ///< ratios
  double ttft_p50 = 0, ttft_p99 = 0, tpot_p50 = 0;             ///< ratios
  int64_t same = 0, different = 0;  ///< answers with the same and with other bytes, of those that both have
};
std::vector<Beside> BesideFirst(const std::vector<Measured>& measured);

std::string TableText(const std::vector<TableRow>& rows, const std::vector<Beside>& beside);

}  // namespace baton::load
