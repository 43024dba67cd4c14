#include "kernels/simt/fault.h"

#include <signal.h>

#include <array>
#include <cstdio>

#include "kernels/simt/block.h"
#include "kernels/simt/device_memory.h"

namespace baton::simt {
#if defined(BATON_SIMT_ASAN) || defined(BATON_SIMT_TSAN)
void CatchKernelFaults() {}
#else
namespace {

struct Fault {
  int signal;
  const char* message;
  struct sigaction previous;
};
std::array<Fault, 3> faults = {{{SIGSEGV, "access to unmapped memory at %p", {}},
                                {SIGBUS, "access to unmapped memory at %p", {}},
                                {SIGFPE, "integer division by zero at %p", {}}}};

/// Runs on the stack of the fiber that faulted. The signal is synchronous and not blocked (SA_NODEFER), so leaving the
/// handler by a switch of fibers, as Fail does, is as good as returning.
void OnFault(int signal, siginfo_t* info, void*) {
  for (const Fault& fault : faults) {
    if (fault.signal != signal) continue;
    if (!InsideKernel()) {
      sigaction(signal, &fault.previous, nullptr);
      return;  // the instruction is repeated and meets the handler that was there before
    }
    ReopenDeviceMemory();
    char message[80];
    std::snprintf(message, sizeof(message), fault.message, info->si_addr);
    CurrentBlock().Fail(message, CurrentThread().wait.where);
  }
}

}  // namespace

void CatchKernelFaults() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = &OnFault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (Fault& fault : faults) sigaction(fault.signal, &action, &fault.previous);
    return true;
  }();
  (void)installed;
}
#endif
}  // namespace baton::simt
