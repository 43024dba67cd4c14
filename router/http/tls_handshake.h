// The begin of a connection to a port that speaks TLS: who may be in it at once, and the handshake. Include only from
// .cc files.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <list>

#include "router/http/request_reader.h"

namespace baton::router {

/// Connections of one loop whose handshake is not done. Belongs to the loop's thread.
class HandshakesUnderWay {
 public:
  /// A place among them, for as long as it lives. Over `most`, the oldest connection is closed if it has had `slow`.
  class Place {
   public:
    Place(HandshakesUnderWay& all, ClientStream& stream, size_t most, std::chrono::milliseconds slow);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    bool gave_way() const { return entry_.gave_way; }

   private:
    friend class HandshakesUnderWay;
    struct Entry {
      ClientStream& stream;
      std::chrono::steady_clock::time_point since;
      bool gave_way = false;
      std::list<Entry*>::iterator at = {};
    };
    HandshakesUnderWay& all_;
    Entry entry_;
  };

 private:
  std::list<Place::Entry*> places_;  // oldest first
};

enum class Greeted { kTls, kPlaintext, kRefused, kGone };
/// Waits for the handshake. kPlaintext: the client does not speak TLS; nothing was sent to it. kRefused: it was told
/// why. kGone: nobody is there. Who was refused was counted.
boost::asio::awaitable<Greeted> Handshake(ClientConnection& connection, const HttpTls& options,
                                          HandshakesUnderWay& under_way, size_t most);

}  // namespace baton::router
