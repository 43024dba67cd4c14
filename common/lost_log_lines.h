// What of the log found no room: a disk that is full, a reader who left. Any thread.
#pragma once

#include <cstdint>

namespace baton {

/// Lines of this process's log that could not be written. A server goes on without them; standard error says when that
/// begins, and the next line that is written is preceded by one that says how many are missing.
int64_t LostLogLines();

}  // namespace baton
