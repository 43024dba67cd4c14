#include "kernels/runtime/emulated_nccl_faults.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "kernels/runtime/emulated_nccl.h"

namespace baton::gpu {
namespace {

void ReadNcclFault(const char* variable, NcclFault& fault) {
  const char* text = std::getenv(variable);
  int who = -1;
  long number = 0;
  if (text != nullptr && std::sscanf(text, "%d:%ld", &who, &number) == 2) fault.Set(who, number);
}

}  // namespace

NcclFaults nccl_faults;

void NcclFaults::Read() {
  static std::once_flag once;
  std::call_once(once, [this] {
    ReadNcclFault("BATON_EMULATED_NCCL_HANG", hang);
    ReadNcclFault("BATON_EMULATED_NCCL_FAIL", failure);
  });
}

void HangInEmulatedNccl(int rank, int64_t call) { nccl_faults.hang.Set(rank, call); }
void FailInEmulatedNccl(int rank, int64_t call) { nccl_faults.failure.Set(rank, call); }
int HangingInEmulatedNccl() { return nccl_faults.hanging; }
int AbortingInEmulatedNccl() { return nccl_faults.aborting; }
void RefuseInEmulatedNccl(int rank, bool in_capture) {
  nccl_faults.refused_in_capture = in_capture;
  nccl_faults.refused_rank = rank;
}
void SeedEmulatedNccl(uint64_t value) { nccl_faults.seed = value; }

}  // namespace baton::gpu
