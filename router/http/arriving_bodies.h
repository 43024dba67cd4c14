// ArrivingBodies: what all connections of a port together keep of long bodies that are not whole yet. With more than
// that some are given up: of the address whose bodies are most, the one that has been arriving for longest. So who
// sends many halves of bodies costs himself his own, and not the process its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace baton::router {

/// Thread-safe.
class ArrivingBodies {
 public:
  explicit ArrivingBodies(size_t most_bytes) : most_bytes_(most_bytes) {}

  /// One body from its first bytes to its end. Of one thread.
  class Body {
   public:
    /// `give_up`: ends it; called at most once, on any thread, with a lock held: it may only leave word.
    Body(ArrivingBodies& all, std::string from, std::function<void()> give_up);
    ~Body();
    Body(const Body&) = delete;
    Body& operator=(const Body&) = delete;
    /// So many bytes of it are here. May give up any, this one too.
    void Has(size_t bytes);

   private:
    ArrivingBodies& all_;
    const uint64_t number_;
  };

 private:
  struct Arriving {
    std::string from;
    std::function<void()> give_up;  ///< null: it was
    size_t bytes = 0;
  };
  void Count(Arriving& body, size_t bytes);
  void GiveUpSome();

  const size_t most_bytes_;
  std::mutex mutex_;                       // guards what follows
  std::map<uint64_t, Arriving> bodies_;    // in the order in which they began
  std::map<std::string, size_t> of_whom_;  // bytes of an address, of those that were not given up
  size_t bytes_ = 0;                       // of all of them
  uint64_t next_ = 0;
};

}  // namespace baton::router
