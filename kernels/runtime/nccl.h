// The calls of NCCL that Baton uses, as a table: the library's, found at run time (cuda/host/nccl_library.h), or the
// emulator's (emulated_nccl.h). Types and numbers are those of nccl.h, of which nothing is needed to build.
//
// A stream is a cudaStream_t there and a gpu::Stream* here. Communicators are made without blocking: a call may answer
// kInProgress, and the next one waits until async_error answers otherwise.
#pragma once

#include <cstddef>

namespace baton::gpu {

struct NcclId {
  char bytes[128] = {};
};
struct NcclComm;  ///< a rank's end of a group

/// Results, of which only these are told apart.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclInternalError = 3,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};
constexpr int kNcclBytes = 0;  ///< the element type of everything that is sent: whole bytes

/// As of version 2.14, which later ones take.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

struct NcclApi {
  int (*get_version)(int* version);
  const char* (*error_text)(int result);
  /// The process's last error in words, CUDA's or the system's among them; empty: there was none.
  const char* (*last_error)(NcclComm* comm);
  int (*get_unique_id)(NcclId* id);
  int (*init_rank)(NcclComm** comm, int ranks, NcclId id, int rank, NcclConfig* config);
  /// Ends what is under way, whose results are then undefined; then waits, of whatever kind the communicator is, until
  /// no graph has a call of it inside, and until the GPU is idle (it frees memory). Any thread.
  int (*abort)(NcclComm* comm);
  int (*async_error)(NcclComm* comm, int* result);
  int (*group_start)();
  int (*group_end)();
  int (*all_gather)(const void* mine, void* all, size_t count, int type, NcclComm* comm, void* stream);
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, NcclComm* comm, void* stream);
  int (*send)(const void* data, size_t count, int type, int peer, NcclComm* comm, void* stream);
  int (*recv)(void* data, size_t count, int type, int peer, NcclComm* comm, void* stream);
};

}  // namespace baton::gpu
