#include "router/fleet/leg_book.h"

#include <algorithm>
#include <utility>

#include "common/planted_bug.h"
#include "common/str_cat.h"

namespace baton::router {

void LegBook::Note(const LegOrder& order, const std::shared_ptr<LegEvents>& events) {
  struct Noter {
    LegBook& book;
    const std::shared_ptr<LegEvents>& events;
    void operator()(const ReserveLeg& o) { book.legs_[o.key.leg_id] = Leg{o.key.attempt, 0, true, events}; }
    void operator()(const PrefillLeg& o) { book.prefills_[{o.key.leg_id, o.key.attempt, o.key.epoch}] = events; }
    void operator()(const AttachLeg& o) { book.legs_[o.leg_id] = Leg{o.attempt, o.attach_gen, false, events}; }
    void operator()(const CancelLeg& o) {
      if (o.key.epoch == 0) {
        book.End(o.key.leg_id);
      } else {
        book.prefills_.erase({o.key.leg_id, o.key.attempt, o.key.epoch});
      }
    }
    void operator()(const CancelAttached& o) {
      if (!o.index) book.End(o.leg_id);
    }
    void operator()(const GiveCredit&) {}
  };
  std::visit(Noter{*this, events}, order);
}

void LegBook::Drop(const LegOrder& order) {
  if (const auto* reserve = std::get_if<ReserveLeg>(&order)) End(reserve->key.leg_id);
  if (const auto* attach = std::get_if<AttachLeg>(&order)) End(attach->leg_id);
  if (const auto* prefill = std::get_if<PrefillLeg>(&order))
    prefills_.erase({prefill->key.leg_id, prefill->key.attempt, prefill->key.epoch});
}

void LegBook::End(std::string_view leg_id) { legs_.erase(AbslView(leg_id)); }

std::shared_ptr<LegEvents> LegBook::Answered(const LegKey& key, const LegAnswer& answer) {
  if (const auto* reserved = std::get_if<ReserveResult>(&answer)) {
    const auto leg = legs_.find(key.leg_id);
    if (leg == legs_.end()) return nullptr;
    const bool asked = leg->second.attempt == key.attempt && leg->second.reserving;
    if (!asked && !PlantedBug("stale answer taken")) return nullptr;
    leg->second.reserving = false;
    auto events = leg->second.events;
    if (!reserved->status.ok()) legs_.erase(leg);
    return events;
  }
  const auto leg = prefills_.find({key.leg_id, key.attempt, key.epoch});
  if (leg == prefills_.end()) return nullptr;
  auto events = leg->second;
  if (std::holds_alternative<PrefillResult>(answer)) prefills_.erase(leg);
  return events;
}

const std::shared_ptr<LegEvents>* LegBook::Of(std::string_view leg_id) const {
  const auto leg = legs_.find(AbslView(leg_id));
  return leg == legs_.end() ? nullptr : &leg->second.events;
}

std::vector<LegRenewal> LegBook::Renewals() const {
  std::vector<LegRenewal> all;
  all.reserve(legs_.size() + prefills_.size());
  for (const auto& [id, leg] : legs_) all.push_back({{id, leg.attempt, 0}, leg.attach_gen});
  std::ranges::sort(all, {}, [](const LegRenewal& leg) -> const std::string& { return leg.key.leg_id; });
  if (PlantedBug("prefill leg not renewed")) return all;
  for (const auto& [key, events] : prefills_) {
    const auto& [id, attempt, epoch] = key;
    all.push_back({{id, attempt, epoch}, 0});
  }
  return all;
}

void LegBook::TellLost(WorkerId worker, const absl::Status& why) {
  for (auto& [key, events] : std::exchange(prefills_, {})) {
    const auto& [id, attempt, epoch] = key;
    events->loop().Post(
        [events = events, key = LegKey{id, attempt, epoch}, why] { events->OnAnswer(key, PrefillResult{why}); });
  }
  std::vector<std::pair<std::string, Leg>> legs(legs_.begin(), legs_.end());
  legs_.clear();
  std::ranges::sort(legs, {}, &std::pair<std::string, Leg>::first);  // the same order in every run
  for (auto& [id, leg] : legs) {
    EventLoop& loop = leg.events->loop();
    loop.Post([events = std::move(leg.events), worker, why] { events->OnWorkerLost(worker, why); });
  }
}

}  // namespace baton::router
