// EventFeed: one reader's connection to the event stream, as server-sent events, until it leaves. A reader who does not
// take what comes is dropped. Belongs to its exchange's loop.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "router/events/event_stream.h"
#include "router/http/http_types.h"

namespace baton::router {

class EventFeed : public std::enable_shared_from_this<EventFeed> {
 public:
  static constexpr size_t kMostUnsentBytes = 1 << 20;

  /// Answers the exchange. `events` and `clock` outlive it. False: there are too many readers, and it is not answered.
  /// `dropped`: the reader has not taken what came.
  static bool Start(std::shared_ptr<HttpExchange> exchange, EventStream& events, const Clock& clock,
                    std::function<void()> dropped);

  EventFeed(std::shared_ptr<HttpExchange> exchange, EventStream& events, const Clock& clock,
            std::function<void()> dropped)
      : exchange_(std::move(exchange)),
        events_(events),
        clock_(clock),
        dropped_(std::move(dropped)),
        timer_(exchange_->loop().MakeTimer()) {}
  ~EventFeed() { events_.Leave(); }

 private:
  void Turn();
  void Close();

  std::shared_ptr<HttpExchange> exchange_;  // null: it has ended
  EventStream& events_;
  const Clock& clock_;
  const std::function<void()> dropped_;
  std::unique_ptr<EventLoopTimer> timer_;
  uint64_t next_ = 0;
};

}  // namespace baton::router
