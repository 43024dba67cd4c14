#include "kernels/cpu/rope_table.h"

#include <cmath>

namespace baton::kernels::cpu {

RopeTable::Entry& RopeTable::Find(const RopeParams& rope) {
  for (Entry& e : entries_) {
    if (e.rope.rotary_dim == rope.rotary_dim && e.rope.attention_factor == rope.attention_factor &&
        e.rope.inv_freq == rope.inv_freq) {
      return e;
    }
  }
  return entries_.emplace_back(Entry{.rope = rope});
}

RopeTable::Rows RopeTable::Get(const RopeParams& rope, int64_t positions) {
  Entry& e = Find(rope);
  if (e.positions < positions) {
    const int64_t wanted = (positions + 255) / 256 * 256;
    const double factor = rope.attention_factor;
    e.cosines.reserve(static_cast<size_t>(wanted) * rope.inv_freq.size());
    e.sines.reserve(static_cast<size_t>(wanted) * rope.inv_freq.size());
    for (int64_t p = e.positions; p < wanted; ++p) {
      for (float frequency : rope.inv_freq) {
        const float angle = static_cast<float>(p) * frequency;
        e.cosines.push_back(static_cast<float>(std::cos(static_cast<double>(angle)) * factor));
        e.sines.push_back(static_cast<float>(std::sin(static_cast<double>(angle)) * factor));
      }
    }
    e.positions = wanted;
  }
  return {e.cosines.data(), e.sines.data()};
}

}  // namespace baton::kernels::cpu
