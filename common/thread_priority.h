// Work that may wait stands back behind work that must not: priorities of single threads.
#pragma once

#include <sys/types.h>

namespace baton {

/// The kernel's id of the calling thread.
pid_t ThisThread();

/// From now on `thread`, one of this process, takes a tenth of a core where others want all of it, and never takes the
/// core from one that runs (Linux: SCHED_BATCH, a nice of 10). Most processes may not undo this. Not less than a tenth:
/// what others wait for, such as a turn to compile, comes to an end on a machine that is never idle, too.
void StandBack(pid_t thread);

/// The calling thread stands back.
bool StandsBack();

}  // namespace baton
