// What a router still waits for at one worker: its tickets, attached legs and prefill legs. What is in here is renewed
// (proto Renewal); what is not, the worker ends by itself. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/clock.h"
#include "router/leg_order.h"

namespace baton::router {

class LiveLegs {
 public:
  void Reserved(const LegKey& key) { legs_[key.leg_id] = {key.attempt, 0}; }
  void Attached(const std::string& leg_id, uint32_t attempt, uint64_t attach_gen) {
    legs_[leg_id] = {attempt, attach_gen};
  }
  /// A ticket or what was attached.
  void Ended(const std::string& leg_id) { legs_.erase(leg_id); }
  void Prefilling(const LegKey& key) { prefills_.insert({key.leg_id, key.attempt, key.epoch}); }
  void PrefillEnded(const LegKey& key) { prefills_.erase({key.leg_id, key.attempt, key.epoch}); }
  void Clear() { legs_.clear(), prefills_.clear(); }

  std::vector<LegRenewal> Renewals() const {
    std::vector<LegRenewal> all;
    all.reserve(legs_.size() + prefills_.size());
    for (const auto& [id, leg] : legs_) all.push_back({{id, leg.attempt, 0}, leg.attach_gen});
    for (const auto& [id, attempt, epoch] : prefills_) all.push_back({{id, attempt, epoch}, 0});
    return all;
  }

 private:
  struct Leg {
    uint32_t attempt = 0;
    uint64_t attach_gen = 0;
  };
  std::map<std::string, Leg> legs_;
  std::set<std::tuple<std::string, uint32_t, uint32_t>> prefills_;  ///< id, attempt, epoch
};

}  // namespace baton::router
