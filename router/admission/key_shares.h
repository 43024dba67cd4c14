// KeyShares: of something bounded, how much each API key holds, and whether it may have more. No key takes all: it may
// hold seven times what it leaves free, so that whoever comes next finds an eighth of what was there. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace baton::router {

class KeyAccount;

/// Whose a request is; null: nobody's, who are one.
using KeyOwner = KeyAccount*;

class KeyShares {
 public:
  /// `several`: there are others to leave something to.
  KeyShares(int64_t most, bool several) : most_(most), several_(several) {}

  /// More than there is goes where nothing is held: else it could never go.
  bool Fits(int64_t amount) const { return used_ == 0 || used_ + amount <= most_; }
  /// And leaves enough to others. Whoever holds nothing may have all that is free.
  bool FitsShare(KeyOwner owner, int64_t amount) const;
  void Take(KeyOwner owner, int64_t amount);
  void Return(KeyOwner owner, int64_t amount);

  int64_t used() const { return used_; }
  int64_t HeldBy(KeyOwner owner) const;
  /// What each may hold where all that hold some, and `owner`, want all they get.
  int64_t ShareOf(KeyOwner owner) const;

 private:
  static constexpr int64_t kTimesFree = 7;

  const int64_t most_;
  const bool several_;
  int64_t used_ = 0;
  absl::flat_hash_map<KeyOwner, int64_t> held_;  // none is 0
};

}  // namespace baton::router
