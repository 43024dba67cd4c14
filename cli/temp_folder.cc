#include "cli/temp_folder.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "cli/environment.h"
#include "common/check.h"
#include "common/errno_text.h"
#include "common/held_signals.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr std::array kEnds = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

std::atomic<const TempFolder*> there = nullptr;

// A signal that nobody wants to hear (nohup) stays one.
void Handle(int number, void (*handler)(int)) {
  if (std::signal(number, handler) == SIG_IGN) std::signal(number, SIG_IGN);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TempFolder>> TempFolder::Make(std::string_view name,
                                                             const std::vector<std::string>& files) {
  const HeldSignals held;
  const std::string parent = Environment("TMPDIR").value_or("");
  std::string path = StrCat(parent.empty() ? "/tmp" : parent, "/baton-", name, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr)
    return absl::FailedPreconditionError(StrCat("cannot make the folder ", path, " (TMPDIR): ", ErrnoText()));
  return std::unique_ptr<TempFolder>(new TempFolder(std::move(path), files));
}

TempFolder::TempFolder(std::string path, const std::vector<std::string>& files) : path_(std::move(path)) {
  for (const std::string& file : files) files_.push_back(StrCat(path_, "/", file));
  BATON_CHECK(there.exchange(this) == nullptr);
  for (const int number : kEnds) Handle(number, &RemoveAndEnd);
}

TempFolder::~TempFolder() {
  const HeldSignals held;
  Remove();
  for (const int number : kEnds) Handle(number, SIG_DFL);
  there = nullptr;
}

void TempFolder::Remove() const {
  for (const std::string& file : files_) unlink(file.c_str());
  rmdir(path_.c_str());
}

/// Only what a signal may do: nothing is allocated.
void TempFolder::RemoveAndEnd(int signal) {
  if (const TempFolder* const folder = there.load()) folder->Remove();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace baton::cli
