#include "decode_worker/handoff/open_line.h"

#include <algorithm>
#include <utility>

namespace baton::decode {

bool OpenLine::Ask(TicketId ticket, const std::string& request, const std::string& process, TimePoint now) {
  while (!waited_for_.empty() && waited_for_.begin()->second.until <= now) Pass(waited_for_.begin());
  const auto [place, fresh] = places_.try_emplace(request);
  if (fresh) place->second.number = next_number_++;
  place->second.ticket = std::max(place->second.ticket, ticket);  // a late Open of an earlier one changes nothing
  WaitFor(place->second.number, process, now);
  return waited_for_.begin()->first == place->second.number;
}

void OpenLine::StandAside(TicketId ticket, const std::string& request) {
  const auto place = places_.find(request);
  if (place != places_.end() && place->second.ticket == ticket) PassBy(place->second.number);
}

void OpenLine::Leave(TicketId ticket, const std::string& request) {
  const auto place = places_.find(request);
  if (place == places_.end() || place->second.ticket != ticket) return;
  PassBy(place->second.number);
  places_.erase(place);
}

void OpenLine::LeaveForNow(TicketId ticket, const std::string& request, TimePoint now) {
  const auto place = places_.find(request);
  if (place == places_.end() || place->second.ticket != ticket) return;  // it has asked with a later one already
  if (const auto wait = waited_for_.find(place->second.number); wait != waited_for_.end())
    WaitFor(place->second.number, std::string(wait->second.process), now);
  place->second.ticket = 0;
  place->second.forget_at = now + remember_;
  left_.Add(request, now + remember_);
}

void OpenLine::Tick(TimePoint now) {
  for (auto wait = waited_for_.begin(); wait != waited_for_.end();) {
    const auto late = wait++;
    if (late->second.until <= now) Pass(late);
  }
  left_.PopDue(now, [this, now](const std::string& request) {
    const auto place = places_.find(request);
    if (place == places_.end() || place->second.ticket != 0 || place->second.forget_at > now) return;
    PassBy(place->second.number);
    places_.erase(place);
  });
}

bool OpenLine::OthersWait(const std::string& process) const {
  const auto own = waits_.find(process);
  return waited_for_.size() > (own == waits_.end() ? 0 : own->second);
}

void OpenLine::WaitFor(uint64_t number, const std::string& process, TimePoint now) {
  PassBy(number);
  waited_for_[number] = {now + turn_, process};
  ++waits_[process];
}

void OpenLine::Pass(std::map<uint64_t, Wait>::iterator wait) {
  const auto count = waits_.find(wait->second.process);
  if (--count->second == 0) waits_.erase(count);
  waited_for_.erase(wait);
}

void OpenLine::PassBy(uint64_t number) {
  if (const auto wait = waited_for_.find(number); wait != waited_for_.end()) Pass(wait);
}

}  // namespace baton::decode
