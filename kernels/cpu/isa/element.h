// Storage types of 16 and 8 bits. Arithmetic is always f32.
#pragma once

#include <cstdint>

namespace baton::kernels::cpu {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};

}  // namespace baton::kernels::cpu
