#include "bench/router/processes.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/router/clients.h"
#include "common/check.h"
#include "common/open_files.h"
#include "common/str_cat.h"
#include "tests/router/fake_worker.h"

namespace baton::bench {
namespace {

const char* program = "";  // of argv

void MoveTo(int fd, int wanted) {
  if (fd == wanted) {
    BATON_CHECK(fcntl(fd, F_SETFD, 0) == 0);
  } else {
    BATON_CHECK(dup2(fd, wanted) == wanted);
  }
}

// `step_us`: 0: each sequence as fast as credit allows; else one step of all sequences at this pace.
void RunWorker(int step_us) {
  router::FakeWorker worker({.max_model_len = 1 << 20,
                             .step_every = std::chrono::microseconds(step_us),
                             .load_every = std::chrono::milliseconds(100),  // as a worker does
                             .vocab_size = 1 << 20});
  worker.Stored({1, 2, 3});  // an index that is not empty is asked
  const int port = worker.port();
  BATON_CHECK(write(kAnswers, &port, sizeof port) == sizeof port);
  char end;
  [[maybe_unused]] const ssize_t closed = read(kOrders, &end, 1);
  _exit(0);
}

}  // namespace

Child::Child(const std::string& role, const std::string& argument) {
  int down[2], up[2];
  BATON_CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int orders = fcntl(down[0], F_DUPFD_CLOEXEC, 10), answers = fcntl(up[1], F_DUPFD_CLOEXEC, 10);
    MoveTo(orders, kOrders);
    MoveTo(answers, kAnswers);
    execl(program, program, "--role", role.c_str(), argument.c_str(), nullptr);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
}

Child::~Child() {
  close(to_);
  close(from_);
  waitpid(pid_, nullptr, 0);
}

void Child::Write(const void* data, size_t bytes) const {
  BATON_CHECK(write(to_, data, bytes) == static_cast<ssize_t>(bytes));
}
void Child::Read(void* data, size_t bytes) const {
  BATON_CHECK(read(from_, data, bytes) == static_cast<ssize_t>(bytes));
}

void RunRole(int argc, char** argv) {
  program = argv[0];
  if (argc < 4 || std::strcmp(argv[1], "--role") != 0) return;
  PinTo(1);
  AllowOpenFiles(1 << 15);
  const std::string role = argv[2];
  if (role == "worker") RunWorker(std::atoi(argv[3]));
  if (role == "client") RunClient();
  if (role == "reader") RunReader(std::atoi(argv[3]));
  _exit(2);
}

void PinTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

}  // namespace baton::bench
