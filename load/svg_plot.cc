#include "load/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;

/// Where a value lies on the paper.
struct Scale {
  double least = 0, most = 1, from = 0, to = 1;
  double operator()(double value) const { return from + (value - least) / (most - least) * (to - from); }
};

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();
  void Take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

std::string Number(double value) {
  if (std::abs(value) >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (std::abs(value) >= 1e4) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%g", value);
}

std::string Axes(const Plot& plot, const Scale& x, const Scale& y) {
  std::string out;
  for (const double tick : Ticks(y.least, y.most)) {
    if (tick < y.least || tick > y.most) continue;
    out += absl::StrFormat(R"(<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>)", kLeft, kWidth - kRight,
                           y(tick), y(tick));
    out += absl::StrFormat(R"(<text class="axis" x="%.1f" y="%.1f" text-anchor="end">%s</text>)", kLeft - 6,
                           y(tick) + 4, Number(tick));
  }
  for (const double tick : Ticks(x.least, x.most)) {
    if (tick < x.least || tick > x.most) continue;
    out += absl::StrFormat(R"(<text class="axis" x="%.1f" y="%.1f" text-anchor="middle">%s</text>)", x(tick),
                           kHeight - kBottom + 18, Number(tick));
  }
  out += absl::StrFormat(R"(<line class="base" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>)", kLeft, kWidth - kRight,
                         kHeight - kBottom, kHeight - kBottom);
  out += absl::StrFormat(R"(<text class="axis" x="%.1f" y="%.1f" text-anchor="middle">%s</text>)",
                         (kLeft + kWidth - kRight) / 2, kHeight - 8, Escaped(plot.x_title));
  return out +
         absl::StrFormat(R"(<text class="axis" x="%.1f" y="%.1f">%s</text>)", 4.0, kTop - 8, Escaped(plot.y_title));
}

std::string SeriesLine(const Series& s, const Scale& x, const Scale& y) {
  std::string out;
  if (!s.dots) {
    out += absl::StrFormat(R"(<polyline class="line s%d" points=")", s.color % 8);
    for (const auto& [px, py] : s.points) out += absl::StrFormat("%.1f,%.1f ", x(px), y(py));
    return out + "\"/>";
  }
  for (const auto& [px, py] : s.points)
    out += absl::StrFormat(R"(<circle class="dot s%d" cx="%.1f" cy="%.1f" r="5"/>)", s.color % 8, x(px), y(py));
  return out;
}

constexpr double kDot = 5, kLetter = 7, kLetterHeight = 12;  // a dot's radius; a letter at most, in the page's 12 px

/// What a dot or a label covers.
struct Box {
  double left, right, top, bottom;
  double Common(const Box& o) const {
    const double w = std::min(right, o.right) - std::max(left, o.left);
    const double h = std::min(bottom, o.bottom) - std::max(top, o.top);
    return w > 0 && h > 0 ? w * h : 0;
  }
  double Outside() const {
    const double out = std::max(0.0, 2 - left) + std::max(0.0, right - (kWidth - 2));
    return out * kLetterHeight;
  }
};

/// Where a label may stand beside its dot: the offset of its text's anchor.
struct Place {
  const char* anchor;
  double dx, dy;
};
constexpr Place kPlaces[] = {{"start", 9, 4},  {"end", -9, 4},  {"middle", 0, -9}, {"middle", 0, 18},
                             {"start", 7, -7}, {"end", -7, -7}, {"start", 7, 15},  {"end", -7, 15},
                             {"start", 9, 18}, {"end", -9, 18}, {"start", 9, -16}, {"end", -9, -16}};

Box BoxOf(const Place& place, double x, double y, size_t letters) {
  const double width = kLetter * static_cast<double>(letters), at = x + place.dx, base = y + place.dy;
  const double left = place.anchor[0] == 's' ? at : place.anchor[0] == 'e' ? at - width : at - width / 2;
  return {left, left + width, base - kLetterHeight + 2, base + 3};
}

/// The names of all dots, each where it covers least of the dots and of the names before it.
std::string Names(const Plot& plot, const Scale& x, const Scale& y) {
  std::vector<Box> taken;
  for (const Series& s : plot.series) {
    if (!s.dots) continue;
    for (const auto& [px, py] : s.points) taken.push_back({x(px) - kDot, x(px) + kDot, y(py) - kDot, y(py) + kDot});
  }
  std::string out;
  for (const Series& s : plot.series) {
    for (size_t i = 0; s.dots && i < std::min(s.points.size(), s.labels.size()); ++i) {
      const double at_x = x(s.points[i].first), at_y = y(s.points[i].second);
      const auto covered = [&](const Place& place) {
        const Box box = BoxOf(place, at_x, at_y, s.labels[i].size());
        double sum = box.Outside();
        for (const Box& other : taken) sum += box.Common(other);
        return sum;
      };
      const Place& place = *std::ranges::min_element(kPlaces, {}, covered);
      taken.push_back(BoxOf(place, at_x, at_y, s.labels[i].size()));
      out += absl::StrFormat(R"(<text class="name" x="%.1f" y="%.1f" text-anchor="%s">%s</text>)", at_x + place.dx,
                             at_y + place.dy, place.anchor, Escaped(s.labels[i]));
    }
  }
  return out;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> Ticks(double least, double most) {
  if (!(most > least)) return {least};
  const double rough = (most - least) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * 0.999) step = factor * power;
  }
  std::vector<double> out;
  const auto first = static_cast<int64_t>(std::floor(least / step)),
             last = static_cast<int64_t>(std::ceil(most / step));
  for (int64_t i = first; i <= last; ++i) out.push_back(static_cast<double>(i) * step);
  return out;
}

std::string Svg(const Plot& plot) {
  Range x, y;
  for (const Series& s : plot.series) {
    for (const auto& [px, py] : s.points) {
      x.Take(px);
      y.Take(py);
    }
  }
  if (!(x.least <= x.most)) return StrCat("<p>", Escaped(plot.title), ": nothing was measured</p>");
  y.Take(0);
  if (plot.x_from_zero) x.Take(0);
  if (x.least == x.most) x = {x.least - 1, x.most + 1};
  if (y.least == y.most) y.most = y.least + 1;
  y.most = Ticks(y.least, y.most).back();
  const Scale sx{x.least, x.most, kLeft, kWidth - kRight}, sy{y.least, y.most, kHeight - kBottom, kTop};
  std::string out = absl::StrFormat(R"(<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">)", kWidth, kHeight,
                                    Escaped(plot.title));
  out += Axes(plot, sx, sy);
  for (size_t i = 0; i < plot.marks.size(); ++i) {
    const auto& [at, text] = plot.marks[i];
    out += absl::StrFormat(R"(<line class="mark" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>)", sx(at), sx(at), kTop,
                           kHeight - kBottom);
    const bool right = sx(at) > kWidth / 2;
    out += absl::StrFormat(R"(<text class="markname" x="%.1f" y="%.1f" text-anchor="%s">%s</text>)",
                           sx(at) + (right ? -5 : 5), kTop + 12 + 14 * static_cast<double>(i % 3),
                           right ? "end" : "start", Escaped(text));
  }
  for (const Series& s : plot.series) out += SeriesLine(s, sx, sy);
  return out + Names(plot, sx, sy) + "</svg>";
}

}  // namespace baton::load
