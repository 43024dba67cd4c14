#include "router/http/event_feed.h"

#include <utility>

namespace baton::router {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(50);

}  // namespace

bool EventFeed::Start(std::shared_ptr<HttpExchange> exchange, EventStream& events, const Clock& clock,
                      std::function<void()> dropped) {
  if (!events.Enter()) return false;
  const auto feed = std::make_shared<EventFeed>(exchange, events, clock, std::move(dropped));
  exchange->StartStream(200, {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}}, "text/event-stream");
  EventBook::Batch greeting = events.Greeting();
  feed->next_ = greeting.next;
  exchange->Write(greeting.text);
  exchange->Watch([feed] { feed->Close(); }, kMostUnsentBytes, [] {});
  if (feed->exchange_) feed->timer_->ArmAt(clock.Now() + kTurn, [feed] { feed->Turn(); });
  return true;
}

void EventFeed::Turn() {
  if (!exchange_) return;
  EventBook::Batch batch = events_.After(next_);
  next_ = batch.next;
  exchange_->Write(batch.text);
  if (exchange_->UnsentBytes() > kMostUnsentBytes) {
    exchange_->End();
    dropped_();
    return Close();
  }
  timer_->ArmAt(clock_.Now() + kTurn, [self = shared_from_this()] { self->Turn(); });
}

void EventFeed::Close() {
  exchange_.reset();
  timer_->Cancel();  // with it the last reference may go
}

}  // namespace baton::router
