// Mutation testing of kernels: every place where a kernel synchronizes, and a run in which one of them is left out.
//
// A test records the sites of a right run, then repeats it without each; a mutant that gives the right answer under all
// policies is a barrier that is not needed, or a test that cannot see. Thread: the emulator's; one set at a time.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "kernels/simt/block.h"

namespace baton::simt {

class SyncSites {
 public:
  using Site = std::pair<std::string, unsigned>;  ///< file, line
  /// From now on until the end of its life this object hears of every synchronizing call.
  SyncSites() { current_ = this; }
  ~SyncSites() { current_ = nullptr; }
  SyncSites(const SyncSites&) = delete;
  SyncSites& operator=(const SyncSites&) = delete;

  void LeaveOut(const Site& site) { left_out_ = site; }
  const std::set<Site>& seen() const { return seen_; }

  /// True when the call at `where` is to do nothing.
  static bool LeftOut(const Where& where) { return current_ != nullptr && current_->Hear(where); }

 private:
  bool Hear(const Where& where) {
    Site site{where.file_name(), where.line()};
    seen_.insert(site);
    return site == left_out_;
  }
  static inline constinit thread_local SyncSites* current_ __attribute__((tls_model("initial-exec"))) = nullptr;
  std::set<Site> seen_;
  Site left_out_{};
};

}  // namespace baton::simt
