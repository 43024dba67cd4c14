// The limit of open files of this process.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace baton {

/// Raises the soft limit to `wanted`, or as far as the hard limit allows; never lowers it. Returns what it is then.
inline rlim_t AllowOpenFiles(rlim_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  const rlimit raised{std::min(wanted, limit.rlim_max), limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace baton
