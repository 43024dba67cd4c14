#include "router/events/event_book.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace baton::router {

std::string ServerSent(const std::string& event) { return StrCat("data: ", event, "\n\n"); }

void EventBook::Append(std::string event) {
  bytes_ += event.size();
  events_.push_back(std::move(event));
  while (events_.size() > most_events_ || (bytes_ > most_bytes_ && events_.size() > 1)) {
    bytes_ -= events_.front().size();
    events_.pop_front();
    ++first_;
  }
}

EventBook::Batch EventBook::From(uint64_t number) const {
  Batch batch;
  batch.next = next();
  batch.lost = number < first_ ? first_ - number : 0;
  for (size_t i = number < first_ ? 0 : std::min<size_t>(number - first_, events_.size()); i < events_.size(); ++i) {
    batch.text += ServerSent(events_[i]);
  }
  return batch;
}

}  // namespace baton::router
