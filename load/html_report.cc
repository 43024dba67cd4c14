#include "load/html_report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"
#include "common/whole_file.h"
#include "load/svg_plot.h"
#include "load/table.h"

namespace baton::load {
namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1b1f24;--soft:#5b6570;--line:#d9dee4;--paper:#fff;--band:#f4f6f8;--bad:#b3261e;
--c0:#2f6fde;--c1:#d9730d;--c2:#15803d;--c3:#a21caf;--c4:#0e7490;--c5:#b45309;--c6:#4f46e5;--c7:#be185d}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa5b1;--line:#343b44;--paper:#14171b;--band:#1d2228;--bad:#ff8a80;
--c0:#7aa7ff;--c1:#ffab5e;--c2:#5fd38a;--c3:#e58bf2;--c4:#5cc8dd;--c5:#f0b465;--c6:#a5a0ff;--c7:#ff8bb8}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1100px;margin:0 auto;padding:24px}
@media(max-width:520px){body{padding:12px}}
h1{font-size:22px}h1,h2,p{overflow-wrap:anywhere}h2{font-size:17px;margin:32px 0 8px;border-top:1px solid var(--line);padding-top:16px}
p,.soft{color:var(--soft)}.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{text-align:right;padding:4px 6px;font-size:14px;border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left}
th{color:var(--soft);font-weight:600}tr.front td:first-child::after{content:" ★";color:var(--c0)}.bad{color:var(--bad)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));max-width:100%;gap:16px}
figure{margin:0;max-width:720px;min-width:0;overflow-x:auto;background:var(--band);border-radius:8px;padding:10px}figcaption{font-weight:600;font-size:14px}
svg{width:100%;min-width:460px;height:auto;display:block}svg text{font:12px system-ui,sans-serif}.axis{fill:var(--soft)}.grid{stroke:var(--line)}
.base{stroke:var(--soft)}.line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{stroke:var(--paper);stroke-width:1}
.name{fill:var(--ink)}.mark{stroke:var(--bad);stroke-dasharray:4 3}.markname{fill:var(--bad)}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
circle.s0,.k0{fill:var(--c0);background:var(--c0)}circle.s1,.k1{fill:var(--c1);background:var(--c1)}circle.s2,.k2{fill:var(--c2);background:var(--c2)}
circle.s3,.k3{fill:var(--c3);background:var(--c3)}circle.s4,.k4{fill:var(--c4);background:var(--c4)}circle.s5,.k5{fill:var(--c5);background:var(--c5)}
circle.s6,.k6{fill:var(--c6);background:var(--c6)}circle.s7,.k7{fill:var(--c7);background:var(--c7)}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 12px}.bar{display:flex;height:22px;border-radius:4px;overflow:hidden;margin:4px 0 10px}
.bar i{display:block}.one{white-space:nowrap}
)";

std::string NameOf(const std::string& target, const LoadPoint& point) {
  return StrCat(target.empty() ? "" : StrCat(target, ": "), PointName(point));
}

std::string Cell(const std::optional<double>& value, int digits) {
  return StrCat("<td>", FigureText(value, digits), "</td>");
}

std::string Rows(const std::vector<TableRow>& rows) {
  const bool goal = std::ranges::any_of(rows, [](const TableRow& r) { return r.good_share.has_value(); });
  std::string out = StrCat(
      "<div class=wide><table><tr><th>load</th><th>runs</th><th>req/s</th><th>failed</th>", goal ? "<th>good</th>" : "",
      "<th>tok/s</th><th>tok/s per user</th><th>TTFT p50 ms</th><th>p99</th><th>TPOT p50 ms</th><th>p99</th><th>E2EL "
      "p50 ms</th></tr>");
  for (const TableRow& r : rows) {
    out +=
        StrCat(r.on_front && rows.size() > 1 ? "<tr class=front>" : "<tr>", "<td>", Escaped(NameOf(r.target, r.point)),
               r.late ? " <span class=bad>(this client was late)</span>" : "", "</td><td>", r.runs, "</td>");
    out += Cell(r.requests_per_s, 2) +
           StrCat(r.failed > 0 ? "<td class=bad>" : "<td>", r.failed, " of ", r.offered, "</td>");
    if (goal) out += r.good_share ? absl::StrFormat("<td>%.1f %%</td>", 100 * *r.good_share) : "<td></td>";
    out += r.runs > 1 ? absl::StrFormat("<td>%.1f (± %.1f %%)</td>", r.tokens_per_s, 50 * r.spread)
                      : Cell(r.tokens_per_s, 1);
    out += Cell(r.user_tokens_per_s(), 1) + Cell(r.ttft_p50, 1) + Cell(r.ttft_p99, 1) + Cell(r.tpot_p50, 2) +
           Cell(r.tpot_p99, 2) + Cell(r.e2el_p50, 1) + "</tr>";
  }
  out += "</table></div>";
  return rows.size() > 1 ? out + "<p>★ no other row has more tokens per second both in all and for each user.</p>"
                         : out;
}

std::string Besides(const std::vector<Beside>& beside) {
  if (beside.empty()) return "";
  std::string out =
      "<h2>Side by side</h2><div class=wide><table><tr><th>server and load</th><th>beside</th><th>tok/s</th><th>least "
      "to "
      "most</th><th>TTFT p50</th><th>p99</th><th>TPOT p50</th><th>same bytes</th><th>other bytes</th></tr>";
  for (const Beside& b : beside) {
    out += StrCat("<tr><td>", Escaped(NameOf(b.target, b.point)), "</td><td>", Escaped(b.first), "</td>");
    out += absl::StrFormat("<td>%.3f ×</td><td>%.3f to %.3f</td><td>%s ×</td><td>%s ×</td><td>%s ×</td>",
                           b.tokens_per_s, b.tokens_least, b.tokens_most, FigureText(b.ttft_p50, 3),
                           FigureText(b.ttft_p99, 3), FigureText(b.tpot_p50, 3));
    out += StrCat("<td>", b.same, "</td><td>", b.different, "</td></tr>");
  }
  return out + "</table></div>";
}

std::string Figure(const Plot& plot) {
  std::string out = StrCat("<figure><figcaption>", Escaped(plot.title));
  if (plot.series.size() > 1) {
    for (const Series& s : plot.series)
      out += StrCat("<span class=\"key k", s.color % 8, "\"></span>", Escaped(s.name));
  }
  return StrCat(out, "</figcaption>", Svg(plot), "</figure>");
}

// A dot for each row, a color for each server.
Plot Front(const std::vector<TableRow>& rows) {
  Plot plot{"Tokens per second, in all and for each user",
            "tokens/s for each user (1000 / median TPOT)",
            "tokens/s in all",
            {}};
  plot.x_from_zero = true;
  std::map<std::string, size_t> of;
  for (const TableRow& r : rows) {
    if (!r.answered()) continue;  // it has no place
    const auto [at, fresh] = of.try_emplace(r.target, plot.series.size());
    if (fresh)
      plot.series.push_back({r.target.empty() ? "server" : r.target, {}, {}, true, static_cast<int>(at->second)});
    Series& s = plot.series[at->second];
    s.points.emplace_back(r.user_tokens_per_s(), r.tokens_per_s);
    s.labels.push_back(PointName(r.point));
  }
  return plot;
}

Plot Timeline(const Measured& m) {
  Plot plot{"Output tokens per second over time", "seconds from the start", "tokens/s", {}};
  Series s{"tokens/s", {}, {}, false, 0};
  const std::vector<double> rates = TokenRates(m.run.outcomes, m.run.duration);
  for (size_t i = 0; i < rates.size(); ++i)
    s.points.emplace_back((static_cast<double>(i) + 0.5) * Seconds(kWindow), rates[i]);
  plot.series.push_back(std::move(s));
  for (const FaultSeen& fault : m.run.faults) plot.marks.emplace_back(Seconds(fault.at), fault.what);
  return plot;
}

Plot DistributionPlot(const char* title, const Statistics& values, int color) {
  Plot plot{title, "ms", "% of requests", {}};
  Series s{title, {}, {}, false, color};
  for (int i = 0; values.count() > 0 && i <= 200; ++i) s.points.emplace_back(values.Percentile(i / 2.0), i / 2.0);
  plot.series.push_back(std::move(s));
  return plot;
}

std::string Bar(const char* which, const FirstToken& f) {
  const Stages& s = f.stages;
  const std::pair<const char*, double> parts[] = {{"router", s.router},
                                                  {"lost workers", s.lost},
                                                  {"reserve", s.reserve},
                                                  {"queue", s.queue_prefill},
                                                  {"prefill", s.prefill},
                                                  {"network", s.network},
                                                  {"client's side", std::max(0.0, f.rest_ms())}};
  std::string keys, bar;
  int color = -1;
  for (const auto& [name, ms] : parts) {
    ++color;
    if (ms <= 0) continue;
    keys += absl::StrFormat(" <span class=one><span class=\"key k%d\"></span>%s %.1f ms</span>", color, name, ms);
    bar += absl::StrFormat("<i class=k%d style=\"width:%.2f%%\"></i>", color, f.ttft_ms > 0 ? 100 * ms / f.ttft_ms : 0);
  }
  return absl::StrFormat("<div class=soft>%s: TTFT %.1f ms of request %d%s</div><div class=bar>%s</div>", which,
                         f.ttft_ms, f.index, keys, bar);
}

std::string Section(const Measured& m, bool one_of_many) {
  const Summary& s = m.summary;
  std::string out =
      "<h2>" + (one_of_many ? StrCat(Escaped(NameOf(m.target, m.point)), ", run ", m.round + 1) : "The run") + "</h2>";
  out += absl::StrFormat("<p>%s: %d of %d requests answered in %.1f s, %d input and %d output tokens.</p>", m.date,
                         s.completed, s.offered, s.duration_s, s.input_tokens, s.output_tokens);
  if (m.run.interrupted)
    out += StrCat("<p class=bad>Interrupted: of ", m.run.planned(), " requests ", m.run.unfinished,
                  " had no end yet and ", m.run.unsent, " were not sent; they are in no figure.</p>");
  for (const auto& [kind, count] : s.failures)
    out += StrCat("<p class=bad>", count, " failed: ", Escaped(kind), "</p>");
  for (const auto& [text, count] : s.first_errors) out += StrCat("<p class=bad>", count, " × ", Escaped(text), "</p>");
  for (const Dip& d : m.dips) {
    out += absl::StrFormat(
        "<p><b>%s</b> at %.1f s: from %.0f tokens/s to %.0f, %s; %d requests ran, %d of them failed.</p>",
        Escaped(d.fault.what), Seconds(d.fault.at), d.before, d.least,
        d.over_after_s ? absl::StrFormat("over after %.2f s", *d.over_after_s) : "not over when the load ended",
        d.running.size(), d.failed);
  }
  if (m.verified)
    out +=
        StrCat("<p>Asked again: ", m.verified->compared, " answers, ", m.verified->different, " with other bytes.</p>");
  out += StrCat("<div class=plots>", Figure(Timeline(m)), Figure(DistributionPlot("Time to first token", s.ttft, 0)),
                Figure(DistributionPlot("Time per output token", s.tpot, 1)),
                Figure(DistributionPlot("End-to-end latency", s.e2el, 2)), "</div>");
  if (s.median)
    out += StrCat("<h3>Where the time to the first token went</h3>", Bar("median", *s.median), Bar("p99", *s.p99));
  return out;
}

}  // namespace

std::string HtmlPage(const std::vector<Measured>& measured, const BenchOptions& o) {
  const std::string& model = measured.front().model;
  std::string out = StrCat(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>baton bench: ",
      Escaped(model), "</title><style>", kStyle, "</style><body><h1>", Escaped(model), "</h1><p>", Escaped(o.label),
      o.label.empty() ? "" : " · ", "dataset ", Escaped(o.dataset_name), ", ", measured.front().summary.offered,
      " requests a run, seed ", o.seed, "</p>");
  const std::vector<TableRow> rows = TableOf(measured);
  out += Rows(rows) + Besides(BesideFirst(measured));
  if (rows.size() > 1) out += StrCat("<h2>The front</h2><div class=plots>", Figure(Front(rows)), "</div>");
  for (const Measured& one : measured) out += Section(one, measured.size() > 1);
  return out + "</body></html>\n";
}

absl::Status WriteHtml(const std::vector<Measured>& measured, const BenchOptions& options, const std::string& path) {
  return WriteWhole({{path, HtmlPage(measured, options)}});
}

}  // namespace baton::load
