// Keys of what was cancelled before it came, each for a while: what comes then is over. No router that cancels without
// end takes the place of another's.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/expiry_line.h"

namespace baton {

/// A Key has a `router`, whose it is. One router has as many as are free beside them: half of all, two a third each.
template <class Key>
class Tombstones {
 public:
  Tombstones(size_t most, Duration kept) : most_(most), kept_(kept) {}

  /// It stays as it is where it is there already, and is not kept where its router has its share.
  void Add(const Key& key, TimePoint now) {
    size_t& of_router = of_router_[key.router];
    if (of_router + keys_.size() < most_ && keys_.insert(key).second) {
      ++of_router;
      line_.Add(key, now + kept_);
    }
    if (of_router == 0) of_router_.erase(key.router);
  }
  bool Has(const Key& key) const { return keys_.contains(key); }
  /// Forgets those whose time is over.
  void Tick(TimePoint now) {
    line_.PopDue(now, [this](const Key& key) {
      keys_.erase(key);
      if (--of_router_.at(key.router) == 0) of_router_.erase(key.router);
    });
  }

 private:
  const size_t most_;
  const Duration kept_;
  std::set<Key> keys_;
  std::map<std::string, size_t> of_router_;
  ExpiryLine<Key> line_;
};

}  // namespace baton
