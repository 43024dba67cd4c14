// Preloaded into a process, its clock of the day is CLOCK_YEARS off, and so is what it sleeps until by that clock; what
// counts spans of time is right. For tests: what a machine is whose clock nobody set.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static long Off(void) {
  static long seconds;
  static int known;
  if (!known) {
    const char* years = getenv("CLOCK_YEARS");
    seconds = years ? atol(years) * 31557600L : 0;
    known = 1;
  }
  return seconds;
}

int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, now);
  if (status == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += Off();
  return status;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec t;
  (void)zone;
  const int status = clock_gettime(CLOCK_REALTIME, &t);
  if (status == 0) *now = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
  return status;
}

time_t time(time_t* out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

// Abseil waits by this, and until a moment of the clock of the day.
long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(rest, long);
  va_end(rest);
  struct timespec until;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
    until = *(const struct timespec*)a[3];
    until.tv_sec -= Off();
    if (until.tv_sec < 0) until.tv_sec = 0;
    a[3] = (long)&until;
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
