// Whole parts that hold everything.
#pragma once

#include <type_traits>

namespace baton {

/// How many parts of `part` (> 0) hold `whole` (>= 0).
template <class T>
constexpr T CeilDiv(T whole, std::type_identity_t<T> part) {
  return (whole + part - 1) / part;
}

}  // namespace baton
