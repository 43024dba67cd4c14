// Random bits that nobody can guess, for names and seeds.
#pragma once

#include <cstdint>

namespace baton {

/// 64 bits of the system's generator, which is asked for many at once. Any thread.
uint64_t RandomWord();

}  // namespace baton
