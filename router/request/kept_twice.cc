#include "router/request/kept_twice.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton::router {

uint64_t SeededHash(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace baton::router
