#include "load/table.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

double TokensPerSecond(const Measured& m) {
  return m.summary.duration_s > 0 ? static_cast<double>(m.summary.output_tokens) / m.summary.duration_s : 0;
}

template <class Figure>
double Median(const std::vector<const Measured*>& runs, Figure figure) {
  std::vector<double> values;
  for (const Measured* m : runs) values.push_back(figure(*m));
  return Statistics(std::move(values)).Percentile(50);
}

using Times = Statistics Summary::*;

// The median of a percentile over the runs that have such times.
std::optional<double> MedianTime(const std::vector<const Measured*>& runs, Times times, double percent) {
  std::vector<double> values;
  for (const Measured* m : runs) {
    const Statistics& of = m->summary.*times;
    if (of.count() > 0) values.push_back(of.Percentile(percent));
  }
  return values.empty() ? std::nullopt : std::optional(Statistics(std::move(values)).Percentile(50));
}

// The same of ratios, round by round.
std::optional<double> MedianRatio(const std::vector<const Measured*>& first, const std::vector<const Measured*>& other,
                                  Times times, double percent) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
    const Statistics &a = first[i]->summary.*times, &b = other[i]->summary.*times;
    if (a.Percentile(percent) > 0 && b.count() > 0) ratios.push_back(b.Percentile(percent) / a.Percentile(percent));
  }
  return ratios.empty() ? std::nullopt : std::optional(Statistics(std::move(ratios)).Percentile(50));
}

TableRow RowOf(const std::vector<const Measured*>& runs) {
  TableRow row{.target = runs.front()->target, .point = runs.front()->point, .runs = std::ssize(runs)};
  int64_t good = 0;
  std::vector<double> tokens;
  for (const Measured* m : runs) {
    row.offered += m->summary.offered;
    row.failed += m->summary.failed;
    good += m->summary.good.value_or(0);
    row.late |= m->summary.lag.Percentile(99) > kLateMs;
    tokens.push_back(TokensPerSecond(*m));
  }
  if (runs.front()->summary.good && row.offered > 0)
    row.good_share = static_cast<double>(good) / static_cast<double>(row.offered);
  row.tokens_per_s = Median(runs, TokensPerSecond);
  const auto [least, most] = std::ranges::minmax_element(tokens);
  if (row.tokens_per_s > 0) row.spread = (*most - *least) / row.tokens_per_s;
  row.requests_per_s = Median(runs, [](const Measured& m) {
    return m.summary.duration_s > 0 ? static_cast<double>(m.summary.completed) / m.summary.duration_s : 0;
  });
  row.ttft_p50 = MedianTime(runs, &Summary::ttft, 50);
  row.ttft_p99 = MedianTime(runs, &Summary::ttft, 99);
  row.tpot_p50 = MedianTime(runs, &Summary::tpot, 50);
  row.tpot_p99 = MedianTime(runs, &Summary::tpot, 99);
  row.e2el_p50 = MedianTime(runs, &Summary::e2el, 50);
  return row;
}

// The runs of each server and load.
std::vector<std::vector<const Measured*>> Groups(const std::vector<Measured>& measured) {
  std::vector<std::vector<const Measured*>> out;
  for (const Measured& m : measured) {
    const auto same = std::ranges::find_if(
        out, [&](const auto& group) { return group.front()->target == m.target && group.front()->point == m.point; });
    if (same == out.end()) {
      out.push_back({&m});
    } else {
      same->push_back(&m);
    }
  }
  return out;
}

bool Beats(const TableRow& a, const TableRow& b) {
  const double x = a.user_tokens_per_s(), y = b.user_tokens_per_s();
  return x >= y && a.tokens_per_s >= b.tokens_per_s && (x > y || a.tokens_per_s > b.tokens_per_s);
}

void CountBytes(const Measured& first, const Measured& other, Beside& out) {
  auto b = other.run.outcomes.begin();  // of an interrupted run some are not there
  for (const Outcome& a : first.run.outcomes) {
    while (b != other.run.outcomes.end() && b->index < a.index) ++b;
    if (b == other.run.outcomes.end()) return;
    if (b->index == a.index && a.ok() && b->ok()) ++(a.answer.text == b->answer.text ? out.same : out.different);
  }
}

double Ratio(double value, double of) { return of > 0 ? value / of : 0; }

Beside BesideOf(const std::vector<const Measured*>& first, const std::vector<const Measured*>& other) {
  Beside out{.target = other.front()->target, .first = first.front()->target, .point = other.front()->point};
  std::vector<double> tokens;
  for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
    tokens.push_back(Ratio(TokensPerSecond(*other[i]), TokensPerSecond(*first[i])));
    CountBytes(*first[i], *other[i], out);
  }
  const Statistics ratios(std::move(tokens));
  out.tokens_per_s = ratios.Percentile(50);
  out.tokens_least = ratios.Percentile(0);
  out.tokens_most = ratios.most();
  out.ttft_p50 = MedianRatio(first, other, &Summary::ttft, 50);
  out.ttft_p99 = MedianRatio(first, other, &Summary::ttft, 99);
  out.tpot_p50 = MedianRatio(first, other, &Summary::tpot, 50);
  return out;
}

}  // namespace

std::string FigureText(const std::optional<double>& value, int digits) {
  return value ? absl::StrFormat("%.*f", digits, *value) : "-";
}

std::vector<TableRow> TableOf(const std::vector<Measured>& measured) {
  std::vector<TableRow> out;
  for (const auto& group : Groups(measured)) out.push_back(RowOf(group));
  for (TableRow& row : out)
    row.on_front =
        row.answered() && std::ranges::none_of(out, [&](const TableRow& other) { return Beats(other, row); });
  return out;
}

std::vector<Beside> BesideFirst(const std::vector<Measured>& measured) {
  std::vector<Beside> out;
  const auto groups = Groups(measured);
  for (const auto& group : groups) {
    const auto first =
        std::ranges::find_if(groups, [&](const auto& g) { return g.front()->point == group.front()->point; });
    if (first->front()->target != group.front()->target) out.push_back(BesideOf(*first, group));
  }
  return out;
}

std::string TableText(const std::vector<TableRow>& rows, const std::vector<Beside>& beside) {
  size_t width = 4;
  const auto name = [](const TableRow& r) {
    return StrCat(r.target.empty() ? "" : StrCat(r.target, ": "), PointName(r.point));
  };
  for (const TableRow& r : rows) width = std::max(width, name(r).size());
  const auto wide = static_cast<int>(width);
  std::string out = absl::StrFormat("%-*s %8s %7s %9s %8s %9s %9s %8s %8s\n", wide, "load", "req/s", "failed", "tok/s",
                                    "tok/s/u", "TTFT p50", "p99", "TPOT p50", "p99");
  for (const TableRow& r : rows) {
    out += absl::StrFormat("%-*s %8.2f %7d %9.1f %8.1f %9s %9s %8s %8s%s", wide, name(r), r.requests_per_s, r.failed,
                           r.tokens_per_s, r.user_tokens_per_s(), FigureText(r.ttft_p50, 1), FigureText(r.ttft_p99, 1),
                           FigureText(r.tpot_p50, 2), FigureText(r.tpot_p99, 2),
                           r.on_front && rows.size() > 1 ? " *" : "");
    if (r.good_share) out += absl::StrFormat("  good %.1f %%", 100 * *r.good_share);
    if (r.runs > 1) out += absl::StrFormat("  %d runs, tok/s within %.1f %%", r.runs, 100 * r.spread);
    out += r.late ? "  this client was late\n" : "\n";
  }
  if (rows.size() > 1) out += "* no other row has more tok/s both in all and for each user\n";
  for (const Beside& b : beside) {
    out += absl::StrFormat(
        "%s beside %s, %s: tok/s %.3f × (%.3f to %.3f), TTFT p50 %s × p99 %s ×, TPOT p50 %s ×; answers with the "
        "same bytes %d, with others %d\n",
        b.target, b.first, PointName(b.point), b.tokens_per_s, b.tokens_least, b.tokens_most, FigureText(b.ttft_p50, 3),
        FigureText(b.ttft_p99, 3), FigureText(b.tpot_p50, 3), b.same, b.different);
  }
  return out;
}

}  // namespace baton::load
