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
  row.ttft_p50 = Median(runs, [](const Measured& m) { return m.summary.ttft.Percentile(50); });
  row.ttft_p99 = Median(runs, [](const Measured& m) { return m.summary.ttft.Percentile(99); });
  row.tpot_p50 = Median(runs, [](const Measured& m) { return m.summary.tpot.Percentile(50); });
  row.tpot_p99 = Median(runs, [](const Measured& m) { return m.summary.tpot.Percentile(99); });
  row.e2el_p50 = Median(runs, [](const Measured& m) { return m.summary.e2el.Percentile(50); });
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
  for (size_t i = 0; i < std::min(first.run.outcomes.size(), other.run.outcomes.size()); ++i) {
    const Outcome &a = first.run.outcomes[i], &b = other.run.outcomes[i];
    if (a.ok() && b.ok()) ++(a.answer.text == b.answer.text ? out.same : out.different);
  }
}

double Ratio(double value, double of) { return of > 0 ? value / of : 0; }

Beside BesideOf(const std::vector<const Measured*>& first, const std::vector<const Measured*>& other) {
  Beside out{.target = other.front()->target, .first = first.front()->target, .point = other.front()->point};
  std::vector<double> tokens, ttft50, ttft99, tpot50;
  for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
    const Summary &a = first[i]->summary, &b = other[i]->summary;
    tokens.push_back(Ratio(TokensPerSecond(*other[i]), TokensPerSecond(*first[i])));
    ttft50.push_back(Ratio(b.ttft.Percentile(50), a.ttft.Percentile(50)));
    ttft99.push_back(Ratio(b.ttft.Percentile(99), a.ttft.Percentile(99)));
    tpot50.push_back(Ratio(b.tpot.Percentile(50), a.tpot.Percentile(50)));
    CountBytes(*first[i], *other[i], out);
  }
  const Statistics ratios(std::move(tokens));
  out.tokens_per_s = ratios.Percentile(50);
  out.tokens_least = ratios.Percentile(0);
  out.tokens_most = ratios.most();
  out.ttft_p50 = Statistics(std::move(ttft50)).Percentile(50);
  out.ttft_p99 = Statistics(std::move(ttft99)).Percentile(50);
  out.tpot_p50 = Statistics(std::move(tpot50)).Percentile(50);
  return out;
}

}  // namespace

std::vector<TableRow> TableOf(const std::vector<Measured>& measured) {
  std::vector<TableRow> out;
  for (const auto& group : Groups(measured)) out.push_back(RowOf(group));
  for (TableRow& row : out)
    row.on_front = std::ranges::none_of(out, [&](const TableRow& other) { return Beats(other, row); });
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
    out += absl::StrFormat("%-*s %8.2f %7d %9.1f %8.1f %9.1f %9.1f %8.2f %8.2f%s", wide, name(r), r.requests_per_s,
                           r.failed, r.tokens_per_s, r.user_tokens_per_s(), r.ttft_p50, r.ttft_p99, r.tpot_p50,
                           r.tpot_p99, r.on_front && rows.size() > 1 ? " *" : "");
    if (r.good_share) out += absl::StrFormat("  good %.1f %%", 100 * *r.good_share);
    if (r.runs > 1) out += absl::StrFormat("  %d runs, tok/s within %.1f %%", r.runs, 100 * r.spread);
    out += r.late ? "  this client was late\n" : "\n";
  }
  if (rows.size() > 1) out += "* no other row has more tok/s both in all and for each user\n";
  for (const Beside& b : beside) {
    out += absl::StrFormat(
        "%s beside %s, %s: tok/s %.3f × (%.3f to %.3f), TTFT p50 %.3f × p99 %.3f ×, TPOT p50 %.3f ×; answers with the "
        "same bytes %d, with others %d\n",
        b.target, b.first, PointName(b.point), b.tokens_per_s, b.tokens_least, b.tokens_most, b.ttft_p50, b.ttft_p99,
        b.tpot_p50, b.same, b.different);
  }
  return out;
}

}  // namespace baton::load
