#include "common/random_word.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "common/check.h"
#include "common/errno_text.h"

namespace baton {

uint64_t RandomWord() {
  constexpr size_t kAtOnce = 32;  // getentropy gives up to 256 bytes
  thread_local std::array<uint64_t, kAtOnce> drawn;
  thread_local size_t left = 0;
  if (left == 0) {
    BATON_CHECK(getentropy(drawn.data(), sizeof(drawn)) == 0, "no random numbers: ", ErrnoText());
    left = kAtOnce;
  }
  return std::exchange(drawn[--left], 0);  // a number that was given out is not kept
}

}  // namespace baton
