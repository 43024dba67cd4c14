// How sure planned times are: from where to where real ones lie, and what that makes of every number that follows from
// them. Bytes are counted and have no range. Pure.
#pragma once

#include <string>
#include <vector>

namespace baton::plan {

struct Machine;

/// From … to.
struct Range {
  double low = 1, high = 1;
  bool operator==(const Range&) const = default;
};

/// Real over planned, of times.
struct Certainty {
  Range prefill, decode, link;
};

/// Of limits: a step takes at least its limit, and kernels reach 0.4 of what a machine can do or more. A link is
/// seldom slower than 0.7 of what it is said to carry.
constexpr Certainty kOfLimits{.prefill = {1, 2.5}, .decode = {1, 2.5}, .link = {1, 1.4}};

/// The machine as it is, then with each of its ranges at either end.
std::vector<Machine> Corners(const Machine& machine);

/// " (12.0 to 30.0)", with so many digits; empty where both are the same.
std::string RangeText(const Range& range, int digits);

}  // namespace baton::plan
