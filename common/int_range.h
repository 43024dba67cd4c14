// A half-open range of integers: layers, heads, columns.
#pragma once

namespace baton {

struct IntRange {
  int begin = 0;
  int end = 0;
  int size() const { return end > begin ? end - begin : 0; }
  bool operator==(const IntRange&) const = default;
};

/// The common part of two ranges; empty (begin ≥ end) when there is none.
inline IntRange Intersect(IntRange a, IntRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

}  // namespace baton
