// A kernel's access to memory that is not mapped, or its division by zero, ends its grid with a message, not the
// process.
#pragma once

namespace baton::simt {

/// From the first call on, for the whole process: SIGSEGV, SIGBUS and SIGFPE raised by kernel code fail the kernel's
/// block; any other goes where it went before. Does nothing under sanitizers, which report such faults with more
/// detail.
void CatchKernelFaults();

}  // namespace baton::simt
