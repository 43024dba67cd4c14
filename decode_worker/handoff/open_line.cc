#include "decode_worker/handoff/open_line.h"

#include <algorithm>

namespace baton::decode {

bool OpenLine::Ask(TicketId ticket, const std::string& request, TimePoint now) {
  while (!waited_for_.empty() && waited_for_.begin()->second <= now) waited_for_.erase(waited_for_.begin());
  const auto [place, fresh] = places_.try_emplace(request);
  if (fresh) place->second.number = next_number_++;
  place->second.ticket = std::max(place->second.ticket, ticket);  // a late Open of an earlier one changes nothing
  waited_for_[place->second.number] = now + turn_;
  return waited_for_.begin()->first == place->second.number;
}

void OpenLine::Leave(TicketId ticket, const std::string& request) {
  const auto place = places_.find(request);
  if (place == places_.end() || place->second.ticket != ticket) return;
  waited_for_.erase(place->second.number);
  places_.erase(place);
}

void OpenLine::LeaveForNow(TicketId ticket, const std::string& request, TimePoint now) {
  const auto place = places_.find(request);
  if (place == places_.end() || place->second.ticket != ticket) return;  // it has asked with a later one already
  waited_for_[place->second.number] = now + turn_;
  place->second.ticket = 0;
  place->second.forget_at = now + remember_;
  left_.Add(request, now + remember_);
}

void OpenLine::Tick(TimePoint now) {
  left_.PopDue(now, [this, now](const std::string& request) {
    const auto place = places_.find(request);
    if (place == places_.end() || place->second.ticket != 0 || place->second.forget_at > now) return;
    waited_for_.erase(place->second.number);
    places_.erase(place);
  });
}

}  // namespace baton::decode
