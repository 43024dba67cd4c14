// Rows of a type known at run time, walked sixteen lanes at a time. Included after element.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"
#include "kernels/cpu/isa/element.h"

namespace {

using baton::DType;

/// Calls f with a typed pointer for a float dtype.
template <class F>
inline void WithType(void* p, DType dtype, F f) {
  if (dtype == DType::kF32)
    f(static_cast<float*>(p));
  else if (dtype == DType::kBF16)
    f(static_cast<Bf16*>(p));
  else
    f(static_cast<F16*>(p));
}
template <class F>
inline void WithType(const void* p, DType dtype, F f) {
  if (dtype == DType::kF32)
    f(static_cast<const float*>(p));
  else if (dtype == DType::kBF16)
    f(static_cast<const Bf16*>(p));
  else
    f(static_cast<const F16*>(p));
}

/// The same for what KV may be kept in, too.
template <class P, class F>
inline void WithStoredType(P p, DType dtype, F f) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<P>>, const E4m3, E4m3>;
  if (dtype == DType::kF8E4M3)
    f(static_cast<Byte*>(p));
  else
    WithType(p, dtype, f);
}

/// f(i, n): chunks of 16 lanes; the last has n < 16 when the length is not a multiple.
template <class F>
inline void ForChunks(int64_t length, F f) {
  for (int64_t i = 0; i < length; i += 16) f(i, static_cast<int>(length - i < 16 ? length - i : 16));
}

}  // namespace
