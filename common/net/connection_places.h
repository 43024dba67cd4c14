// ConnectionPlaces: the connections of a port with their places, and which of them gives way to a new one where none is
// left: the oldest that has asked nothing yet, or else the one that has been idle for longest; who is sending a request
// counts as if he had just come. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/net/connection_shares.h"

namespace baton::net {

class ConnectionPlaces {
  struct Group;

 public:
  /// Of one connection; who uses this keeps what he knows of it in a class of his own.
  class Place : public std::enable_shared_from_this<Place> {
   public:
    /// An address as CountedAs gives it.
    explicit Place(const boost::asio::ip::address& from) : from_(from) {}
    virtual ~Place() = default;
    const boost::asio::ip::address& from() const { return from_; }
    /// Bytes that have come from it. Any thread; asked only where a place is wanted.
    virtual uint64_t Brought() const { return 0; }
    /// True: a later request may have begun of which `Begins` said nothing, and then Brought is what has come since the
    /// latest one was answered.
    virtual bool MayHaveBegun() const { return false; }
    /// A request has begun to come; cheap. Of the first one nobody needs to know.
    void Begins() { begins_.store(true, std::memory_order_relaxed); }

   private:
    friend class ConnectionPlaces;
    enum class State { kNew, kIdle, kBusy, kNone };
    const boost::asio::ip::address from_;
    std::atomic<bool> begins_{false};
    uint64_t seen_ = 0;  ///< of what it has brought, at the latest look
    State state_ = State::kNone;
    Group* of_address_ = nullptr;
    std::list<Place*>::iterator in_all_ = {}, in_address_ = {};
  };
  struct Entered {
    const char* full = nullptr;       ///< there is no place for it: as ConnectionShares::Enter
    std::shared_ptr<Place> gave_way;  ///< it has this one's place, whose connection must be closed
  };

  /// Whoever has brought so much since he was last looked at gives way as if he had just come.
  static constexpr size_t kBytesOfAPlace = 16 << 10;
  static constexpr int kGivenUpAtOnce = 16;

  explicit ConnectionPlaces(const ConnectionLimits& limits) : shares_(limits) {}

  /// A connection that has asked nothing yet. Of those of its own address one gives way where the address may have no
  /// more; of all, where there are no more. `place` lives until Leave.
  Entered Enter(Place& place);
  /// It is answered, and keeps its place. False: it has none any more.
  bool SetBusy(Place& place);
  /// It was answered.
  void SetIdle(Place& place);
  void Leave(Place& place);
  /// Some that give way to nobody's connection in particular, where this process has no file descriptor left; none: all
  /// are answered.
  std::vector<std::shared_ptr<Place>> GiveUpSome();
  /// Why one of `from` would find no place but another's, as ConnectionShares::Enter; null: it would.
  const char* Full(const boost::asio::ip::address& from);
  int32_t all() const { return shares_.all(); }

 private:
  using State = Place::State;
  struct Group {
    std::list<Place*>& of(State state) { return by_state[static_cast<size_t>(state)]; }
    size_t waiting() { return of(State::kNew).size() + of(State::kIdle).size(); }
    std::array<std::list<Place*>, 3> by_state;  ///< oldest first; of those that are idle, by when they began to be
  };
  // With mutex_ held:
  int32_t Yielding();
  Place* Oldest(Group& of);
  static bool IsSending(Place& place);
  void Move(Place& place, State to);
  void Forget(Place& place);

  ConnectionShares shares_;
  std::mutex mutex_;  // guards what follows
  Group all_;
  std::map<boost::asio::ip::address, Group> by_address_;  ///< none is empty
};

}  // namespace baton::net
