// A plot of lines or dots as SVG, for a page whose style sheet has the classes s0…s7 (series), axis, grid, mark.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::load {

struct Series {
  std::string name;                               ///< in the legend
  std::vector<std::pair<double, double>> points;  ///< x, y
  std::vector<std::string> labels{};              ///< of dots, beside them; may be empty
  bool dots = false;                              ///< dots without a line
  int color = 0;                                  ///< class s0…s7
};

struct Plot {
  std::string title, x_title, y_title;
  std::vector<Series> series;
  std::vector<std::pair<double, std::string>> marks{};  ///< vertical lines with their text
  bool x_from_zero = false;
};

/// Text as HTML and SVG have it.
std::string Escaped(std::string_view text);
/// 0, 20, 40 … around what is shown: at most 6 steps of 1, 2 or 5 times a power of ten.
std::vector<double> Ticks(double least, double most);
/// 640 by 300 units.
std::string Svg(const Plot& plot);

}  // namespace baton::load
