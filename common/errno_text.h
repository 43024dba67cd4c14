// What an errno says, for messages.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace baton {

/// As strerror, which need not be safe where several threads fail at once.
inline std::string ErrnoText(int error = errno) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof(buffer));  // GNU's: the text may stand elsewhere
}

}  // namespace baton
