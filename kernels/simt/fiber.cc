#include "kernels/simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator's context switch is written for x86-64"
#endif

// BATON_SIMT_ASAN and BATON_SIMT_TSAN are set by CMake: this file itself is built without instrumentation.
#ifdef BATON_SIMT_ASAN
extern "C" {
void __asan_unpoison_memory_region(void const volatile*, size_t);
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
}
#endif
#ifdef BATON_SIMT_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_read_range(void*, unsigned long);
void __tsan_write_range(void*, unsigned long);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

// Saves the callee-saved registers on the current stack, swaps stacks, restores.
extern "C" void baton_simt_switch(void** save, void* load);
asm(R"(
.text
.globl baton_simt_switch
.type baton_simt_switch,@function
baton_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size baton_simt_switch,.-baton_simt_switch
)");

namespace baton::simt {
namespace {

/// The scheduler's side of the switch, one per OS thread.
struct SchedulerContext {
  void* stack_pointer = nullptr;
  void* tsan = nullptr;
  void* asan_fake_stack = nullptr;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  bool leaves = false;       ///< the last switch was the scheduler's own: its stack is what the fiber hears of
  Fiber* running = nullptr;  ///< null: the scheduler itself
  int unwatched = 0;
};
// In the part of thread-local memory that is there at once, in a plugin too: every start of a thread asks for them.
thread_local SchedulerContext scheduler __attribute__((tls_model("initial-exec")));
thread_local std::vector<char*> stacks __attribute__((tls_model("initial-exec")));

constexpr size_t kColorBytes = 4096 + 128;  ///< neighbours' stacks are shifted by it
constexpr size_t kColors = 32;

[[maybe_unused]] constexpr unsigned kTsanNoSync = 1;  ///< a switch is not a happens-before edge: races stay visible

}  // namespace

char* PooledStack(size_t index) {
  while (stacks.size() <= index) {
    void* p = mmap(nullptr, kStackBytes + kColors * kColorBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      std::perror("simt: mmap of a stack");
      std::abort();
    }
    stacks.push_back(static_cast<char*>(p) + stacks.size() % kColors * kColorBytes);
  }
  return stacks[index];
}

void StartFiber(Fiber& fiber, void (*entry)()) {
#ifdef BATON_SIMT_ASAN
  __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - 64);
  *--top = nullptr;  // the entry function's return address: never used, keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
#ifdef BATON_SIMT_ASAN
  fiber.asan_fake_stack = nullptr;
#endif
#ifdef BATON_SIMT_TSAN
  fiber.tsan = __tsan_create_fiber(0);
  fiber.unwatched = 0;
#endif
}

#ifdef BATON_SIMT_ASAN
/// What a fiber does first after every switch to it.
void Arrived(void* fake_stack) {
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (!scheduler.leaves) return;
  scheduler.leaves = false;
  scheduler.stack_bottom = bottom;
  scheduler.stack_bytes = bytes;
}
#endif

void ResumeFiber(Fiber& fiber) {
#ifdef BATON_SIMT_ASAN
  scheduler.leaves = true;
  __sanitizer_start_switch_fiber(&scheduler.asan_fake_stack, fiber.stack, kStackBytes);
#endif
#ifdef BATON_SIMT_TSAN
  scheduler.tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.tsan, kTsanNoSync);
  scheduler.running = &fiber;
#endif
  baton_simt_switch(&scheduler.stack_pointer, fiber.stack_pointer);
#ifdef BATON_SIMT_ASAN
  __sanitizer_finish_switch_fiber(scheduler.asan_fake_stack, nullptr, nullptr);
#endif
}

void SuspendFiber(Fiber& fiber, bool last) {
  (void)last;
#ifdef BATON_SIMT_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &fiber.asan_fake_stack, scheduler.stack_bottom,
                                 scheduler.stack_bytes);
#endif
#ifdef BATON_SIMT_TSAN
  __tsan_switch_to_fiber(scheduler.tsan, kTsanNoSync);
  scheduler.running = nullptr;
#endif
  baton_simt_switch(&fiber.stack_pointer, scheduler.stack_pointer);
#ifdef BATON_SIMT_ASAN
  Arrived(fiber.asan_fake_stack);
#endif
}

void SwitchFiber(Fiber& from, Fiber& to) {
#ifdef BATON_SIMT_ASAN
  __sanitizer_start_switch_fiber(&from.asan_fake_stack, to.stack, kStackBytes);
#endif
#ifdef BATON_SIMT_TSAN
  __tsan_switch_to_fiber(to.tsan, kTsanNoSync);
  scheduler.running = &to;
#endif
  baton_simt_switch(&from.stack_pointer, to.stack_pointer);
#ifdef BATON_SIMT_ASAN
  Arrived(from.asan_fake_stack);
#endif
}

void FiberEntered() {
#ifdef BATON_SIMT_ASAN
  Arrived(nullptr);
#endif
}

#ifdef BATON_SIMT_TSAN
void EndFiber(Fiber& fiber) {
  if (fiber.tsan != nullptr) {
    if (fiber.unwatched > 0) AsAgent(fiber.tsan, [](void*) { __tsan_ignore_thread_end(); }, nullptr);
    __tsan_destroy_fiber(fiber.tsan);
  }
  fiber.tsan = nullptr;
}

void NoteRelease(void* sync) { __tsan_release(sync); }
void NoteAcquire(void* sync) { __tsan_acquire(sync); }
void NoteRead(const void* p, size_t bytes) { __tsan_read_range(const_cast<void*>(p), bytes); }
void NoteWrite(void* p, size_t bytes) { __tsan_write_range(p, bytes); }
int& UnwatchedDepth() { return scheduler.running != nullptr ? scheduler.running->unwatched : scheduler.unwatched; }
Unwatched::Unwatched() {
  if (UnwatchedDepth()++ == 0) __tsan_ignore_thread_begin();
}
Unwatched::~Unwatched() {
  if (--UnwatchedDepth() == 0) __tsan_ignore_thread_end();
}
void* BeginAgent() { return __tsan_create_fiber(0); }
void AsAgent(void* agent, void (*accesses)(void*), void* context) {
  void* self = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(agent, kTsanNoSync);
  accesses(context);
  __tsan_switch_to_fiber(self, kTsanNoSync);
}
void EndAgent(void* agent) { __tsan_destroy_fiber(agent); }
#endif

}  // namespace baton::simt
