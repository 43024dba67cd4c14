// BATON_CHECK: "we are wrong". Prints the condition, the values given and the place, then aborts. On in every build.
// For what the world can get wrong (files, peers, requests) return a Status instead.
#pragma once

#include <string>

#include "common/str_cat.h"

namespace baton {

/// Prints "file:line: check failed: condition message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace baton

/// BATON_CHECK(free >= need, "need ", need, " blocks, ", free, " free")
#define BATON_CHECK(condition, ...)                                                                         \
  do {                                                                                                      \
    if (!(condition)) [[unlikely]]                                                                          \
      ::baton::CheckFailed(__FILE__, __LINE__, #condition, ::baton::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

/// As BATON_CHECK, compiled out with NDEBUG (inner loops).
#ifdef NDEBUG
#define BATON_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#else
#define BATON_DCHECK(condition, ...) BATON_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
