// Several runs side by side: a row for each server and load, and what one server is beside another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "load/measured.h"

namespace baton::load {

/// Medians over the runs of one server under one load. Times in ms, of the runs that have them: a run without an answer
/// is none of 0 ms.
struct TableRow {
  std::string target;
  LoadPoint point;
  int64_t runs = 0, offered = 0, failed = 0;  ///< of all runs
  std::optional<double> good_share;           ///< of what was offered
  double requests_per_s = 0, tokens_per_s = 0;
  double spread = 0;  ///< of tokens_per_s: (most − least) / median
  std::optional<double> ttft_p50, ttft_p99, tpot_p50, tpot_p99, e2el_p50;
  bool late = false;  ///< this client was, in one of the runs
  /// It has answers, and no other row has both more tokens per second in all and for each user.
  bool on_front = false;

  bool answered() const { return failed < offered; }
  double user_tokens_per_s() const { return tpot_p50.value_or(0) > 0 ? 1000 / *tpot_p50 : 0; }
};

/// In the order in which they were measured first.
std::vector<TableRow> TableOf(const std::vector<Measured>& measured);

/// One server beside the first one under the same load; ratios are medians of the rounds' own ratios.
struct Beside {
  std::string target, first;
  LoadPoint point;
  double tokens_per_s = 0, tokens_least = 0, tokens_most = 0;  ///< ratios
  std::optional<double> ttft_p50, ttft_p99, tpot_p50;          ///< ratios, of rounds in which both have the figure
  int64_t same = 0, different = 0;  ///< answers with the same and with other bytes, of those that both have
};
std::vector<Beside> BesideFirst(const std::vector<Measured>& measured);

/// "-": there is none.
std::string FigureText(const std::optional<double>& value, int digits);
std::string TableText(const std::vector<TableRow>& rows, const std::vector<Beside>& beside);

}  // namespace baton::load
