#include "load/html_report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <regex>

#include "common/str_cat.h"
#include "load/svg_plot.h"
#include "tests/load/measured_fixture.h"

namespace baton::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(HtmlReport, APageHasEveryRunAndNeedsNoNetwork) {
  std::vector<Measured> all = {Steady("<a>", {1, 0}, 0, 10, 10), Steady("b", {1, 0}, 0, 10, 30)};
  all[0].run.faults.push_back({std::chrono::milliseconds(200), "kill \"decode\"", ""});
  const std::string page = HtmlPage(all, {});
  EXPECT_THAT(page, HasSubstr("&lt;a&gt;: 1/s"));
  EXPECT_THAT(page, Not(HasSubstr("<a>")));
  EXPECT_THAT(page, HasSubstr("kill &quot;decode&quot;"));
  EXPECT_THAT(page, HasSubstr("Side by side"));
  EXPECT_EQ(Count(page, "<svg"), 1u + 2 * 4);
  EXPECT_EQ(Count(page, "<svg"), Count(page, "</svg>"));
  for (const char* reaches_out : {"src=", "href=", "url(", "@import", "<script"})
    EXPECT_THAT(page, Not(HasSubstr(reaches_out)));
}

TEST(HtmlReport, ARunWithoutAnAnswerIsAPageToo) {
  Measured none{.model = "m", .date = "d"};
  none.run.outcomes.push_back({.failure = Failure::kConnect, .error = "connecting: <refused>"});
  none.summary = Summarize(none.run, {});
  const std::string page = HtmlPage({none}, {});
  EXPECT_THAT(page, HasSubstr("connecting: &lt;refused&gt;"));
  EXPECT_THAT(page, HasSubstr("Time to first token: nothing was measured"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(HtmlReport, OfASweepALoadWithoutAnAnswerHasNoTimesAndNoPlaceOnTheFront) {
  std::vector<Measured> all = {Steady("", {1, 0}, 0, 10, 10), Steady("", {9, 0}, 0, 10, 10)};
  for (Outcome& o : all[1].run.outcomes) {
    o.arrivals.clear();
    o.failure = Failure::kRefused;
    o.http_status = 503;
  }
  all[1].summary = Summarize(all[1].run, {});
  all[1].run.interrupted = true;
  all[1].run.unsent = 3;
  const std::string page = HtmlPage(all, {});
  EXPECT_THAT(page, HasSubstr("<td class=bad>10 of 10</td><td>0.0</td><td>0.0</td><td>-</td><td>-</td><td>-</td>"));
  EXPECT_EQ(Count(page, "<tr class=front>"), 1u);
  EXPECT_THAT(page, HasSubstr("10 failed: http_503"));
  EXPECT_THAT(page, HasSubstr("Interrupted: of 13 requests 0 had no end yet and 3 were not sent"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(HtmlReport, TimeOnLostWorkersIsNotTheRouters) {
  Measured m = Steady("", {1, 0}, 0, 3, 40);
  FirstToken first{.index = 2, .ttft_ms = 40, .stages = {.prefill = 10, .router = 1, .lost = 29}};
  m.summary.median = m.summary.p99 = first;
  const std::string page = HtmlPage({m}, {});
  EXPECT_THAT(page, HasSubstr("router 1.0 ms"));
  EXPECT_THAT(page, HasSubstr("lost workers 29.0 ms"));
  EXPECT_THAT(page, Not(HasSubstr("reserve 0.0"))) << "what took no time is left out";
  m.summary.median->stages.lost = 0;
  m.summary.p99->stages.lost = 0;
  EXPECT_THAT(HtmlPage({m}, {}), Not(HasSubstr("lost workers")));
}

TEST(HtmlReport, AFolderThatIsNotThereIsSaid) {
  EXPECT_THAT(std::string(WriteHtml({Steady("", {1, 0}, 0, 1, 1)}, {}, "no/such/folder/x.html").message()),
              HasSubstr("no/such/folder/x.html"));
}

struct Name {
  double left, right, base;
};

// Of a plot's names, at six units a letter.
std::vector<Name> NamesOf(const std::string& svg) {
  std::vector<Name> out;
  const std::regex name(R"re(class="name" x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">([^<]*)<)re");
  for (std::sregex_iterator it(svg.begin(), svg.end(), name), end; it != end; ++it) {
    const double x = std::stod((*it)[1]), width = 6.0 * static_cast<double>((*it)[4].length());
    const double left = (*it)[3] == "start" ? x : (*it)[3] == "end" ? x - width : x - width / 2;
    out.push_back({left, left + width, std::stod((*it)[2])});
  }
  return out;
}

TEST(SvgPlot, NamesOfDotsThatLieCloseTogetherDoNotCoverEachOther) {
  Plot plot{"front", "x", "y", {}};
  plot.x_from_zero = true;
  Series a{"a", {{14.7, 16.3}, {19.8, 21.6}, {10.4, 28.2}, {13.0, 28.8}, {10.6, 35.1}, {8.5, 26.1}}, {}, true, 0};
  for (const int n : {1, 2, 3, 4, 6, 8}) a.labels.push_back(StrCat(n, " at a time"));
  Series b{"b", {{10.3, 28.0}, {19.8, 21.7}, {0.1, 35}}, {"2/s", "16/s, 32 at a time", "1/s"}, true, 1};
  plot.series = {a, b};
  const std::vector<Name> names = NamesOf(Svg(plot));
  ASSERT_EQ(names.size(), 9u);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_GE(names[i].left, 0);
    EXPECT_LE(names[i].right, 640);
    for (size_t j = 0; j < i; ++j) {
      const bool apart = names[i].left >= names[j].right || names[j].left >= names[i].right ||
                         std::abs(names[i].base - names[j].base) >= 10;
      EXPECT_TRUE(apart) << "names " << j << " and " << i;
    }
  }
}

TEST(SvgPlot, TicksAreRoundAndFew) {
  EXPECT_THAT(Ticks(0, 100), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(Ticks(0, 7), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(Ticks(5, 5), ElementsAre(5));
  for (const double most : {1e-9, 0.3, 1.0, 37.0, 99999.0, 1e12}) {
    EXPECT_GE(Ticks(0, most).back(), most);
    EXPECT_LE(Ticks(0, most).size(), 8u);
  }
}

}  // namespace
}  // namespace baton::load
