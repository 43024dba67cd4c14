// A fiber: one CUDA thread's stack and saved registers. Switching costs about ten instructions.
// Thread: a fiber and its scheduler live on one OS thread. Sanitizers are told about every switch.
#pragma once

#include <cstddef>

namespace baton::simt {

/// Stack bytes of one CUDA thread. Sanitizers and -O0 need more than optimized code.
inline constexpr size_t kStackBytes = 256 << 10;

struct Fiber {
  void* stack_pointer = nullptr;  ///< saved while the fiber is not running
  char* stack = nullptr;          ///< kStackBytes, owned by the StackPool
#ifdef BATON_SIMT_TSAN
  void* tsan = nullptr;  ///< ThreadSanitizer's handle
  int unwatched = 0;     ///< Unwatched objects that live on it
#endif
#ifdef BATON_SIMT_ASAN
  void* asan_fake_stack = nullptr;
#endif
};

/// Prepares `fiber` to run `entry` on its stack at the first ResumeFiber.
void StartFiber(Fiber& fiber, void (*entry)());
/// Scheduler → fiber. Returns when the fiber calls SuspendFiber.
void ResumeFiber(Fiber& fiber);
/// Fiber → fiber, of one scheduler: as if `from` had gone back to it and it had resumed `to`.
void SwitchFiber(Fiber& from, Fiber& to);
/// Fiber → scheduler. `last` says that the fiber will never run again.
void SuspendFiber(Fiber& fiber, bool last);
/// First statement of an entry function.
void FiberEntered();

#ifdef BATON_SIMT_TSAN
/// Frees what ThreadSanitizer keeps for the fiber; its stack may be used again.
void EndFiber(Fiber& fiber);

/// Happens-before edges and accesses for ThreadSanitizer; nothing in other builds.
void NoteRelease(void* sync);
void NoteAcquire(void* sync);
void NoteRead(const void* p, size_t bytes);
void NoteWrite(void* p, size_t bytes);

/// While it lives the running fiber's accesses are the emulator's own: to ThreadSanitizer, which sees those of memcpy
/// and the allocator even in code that is not instrumented, they are nobody's race. Note… have no effect meanwhile but
/// for the edges, and for what an agent does.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

/// What hardware does beside the threads, to ThreadSanitizer a fiber of its own: null, and nothing, in other builds.
/// Its accesses come after what the thread that begins it has done until then.
void* BeginAgent();
/// Runs `accesses(context)` as the agent: Note… in it are the agent's.
void AsAgent(void* agent, void (*accesses)(void*), void* context);
void EndAgent(void* agent);
#else
inline void EndFiber(Fiber&) {}
inline void NoteRelease(void*) {}
inline void NoteAcquire(void*) {}
inline void NoteRead(const void*, size_t) {}
inline void NoteWrite(void*, size_t) {}
class Unwatched {
 public:
  Unwatched() {}
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};
inline void* BeginAgent() { return nullptr; }
inline void AsAgent(void*, void (*)(void*), void*) {}
inline void EndAgent(void*) {}
#endif

/// Stacks of this OS thread, mapped once and reused by every block. Stack i is at the same address for ever; neighbours
/// lie in different sets of the caches, which would else hold the tops of a dozen.
char* PooledStack(size_t index);

}  // namespace baton::simt
