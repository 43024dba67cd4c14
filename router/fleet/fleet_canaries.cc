// The fleet's canaries: whom the book (canary_book.h) may ask, and how its orders are carried out.
#include <utility>

#include "absl/strings/str_format.h"
#include "common/random_word.h"
#include "router/fleet/fleet.h"

namespace baton::router {

std::string Fleet::UnprovenAtFirst() const { return send_canary_ ? "no canary has gone through it yet" : ""; }

void Fleet::LookAtCanaries() {
  if (!send_canary_ || closed_) return;
  std::vector<CanaryBook::Member> serving;
  const std::shared_ptr<const Links> all = links();
  for (const auto& link : *all) {
    if (link == nullptr) continue;
    link->Look([&](const LinkView& v) {
      if (v.state != LinkState::kReady || !v.held.empty()) return;
      serving.push_back(
          {v.id.index, v.facts->role, v.name(), v.facts->incarnation, v.facts->numerics_id, v.facts->kv_protocol});
    });
  }
  canaries_.Serve(serving, clock_.Now());
  for (const CanaryAction& action : canaries_.TakeActions()) std::visit([this](const auto& one) { Do(one); }, action);
}

void Fleet::Do(const RunCanary& action) {
  const auto link = LinkOf({action.decode});
  const LinkView decode = link->View();
  CanaryLegs legs{absl::StrFormat("canary-%016x", RandomWord()), {}, decode.id, decode.facts->vocab_size};
  if (action.prefill) legs.prefill = LinkOf({*action.prefill})->View().id;
  sent_canaries_[action.number] = send_canary_(legs, [this, number = action.number](const absl::Status& status) {
    loops_.home.Post([this, number, status] {
      sent_canaries_.erase(number);
      if (closed_) return;
      canaries_.Ended(number, status, clock_.Now());
      LookAtCanaries();
      NoteReady();
    });
  });
}

void Fleet::Do(const ShowProof& action) {
  if (const auto link = LinkOf({action.slot})) link->Prove(action.unproven, action.next);
}

void Fleet::Do(const ArmCanaries& action) {
  if (canary_timer_ == nullptr) canary_timer_ = loops_.home.MakeTimer();
  canary_timer_->ArmAt(action.at, [this] { LookAtCanaries(); });
}

}  // namespace baton::router
