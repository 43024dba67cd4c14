#include "worker/relay/relay_book.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/planted_bug.h"
#include "common/status.h"

namespace baton::worker {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr int kMostRefused = 1024;  // choices of one Attach that hear of it; no router asks for more of one worker

// Sends an entry of its own at once.
void SendNow(RelayWriter& sink, v1::RelayEntry entry) {
  v1::RelayDown down;
  *down.add_entries() = std::move(entry);
  sink.Send(std::move(down));
}

v1::RelayEntry ErrorEntry(const v1::Attach& attach, uint32_t index, v1::Error error) {
  v1::RelayEntry entry;
  entry.set_request_id(attach.key().request_id());
  entry.set_attach_gen(attach.attach_gen());
  entry.set_index(index);
  entry.set_position(TokensIn(attach));
  entry.set_finish_reason(v1::FINISH_REASON_ERROR);
  *entry.mutable_error() = std::move(error);
  return entry;
}

// After a handoff: from the Attach to the last verified segment, then to the first step, then to its token.
void StampTicketTimings(Duration transfer, const engine::Timings& t, v1::StageTimings& out) {
  out.set_queue_prefill_ms(0);
  out.set_prefill_ms(0);
  out.set_transfer_ms(Milliseconds(transfer));
  out.set_queue_decode_ms(Milliseconds(t.queued));
  out.set_first_decode_ms(Milliseconds(t.prefill));
  out.set_decode_ms(Milliseconds(t.total - t.queued));
}

// Without the tokens before `position`.
engine::SequenceOutput WithoutFirst(engine::SequenceOutput output, int32_t position) {
  const auto skip =
      std::min<ptrdiff_t>(std::max(0, position - output.position), static_cast<ptrdiff_t>(output.tokens.size()));
  output.tokens.erase(output.tokens.begin(), output.tokens.begin() + skip);
  output.position += static_cast<int32_t>(skip);
  return output;
}

}  // namespace

RelayBook::Name RelayBook::NameOf(const RelayWriter& sink, const std::string& request_id) {
  return {PlantedBug("requests are not told apart by their routers") ? "" : sink.router(), request_id};
}

void RelayBook::OnMessage(const std::shared_ptr<RelayWriter>& sink, const v1::RelayUp& message,
                          engine::Scheduler& scheduler, TimePoint now) {
  for (const v1::RelayCancel& cancel : message.cancel()) OnCancel(sink.get(), cancel, scheduler, now);
  for (const v1::Credit& credit : message.credit()) OnCredit(sink.get(), credit, scheduler, now);
  for (const v1::Attach& attach : message.attach()) OnAttach(sink, attach, scheduler, now);
  for (const v1::Renewal& renewal : message.renewal()) OnRenewal(*sink, renewal, now);
}

void RelayBook::OnAttach(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach,
                         engine::Scheduler& scheduler, TimePoint now) {
  std::optional<engine::RequestKey> replaces;  // a ticket's
  if (auto old = by_request_.find(NameOf(*sink, attach.key().request_id())); old != by_request_.end()) {
    const engine::RequestKey key = old->second;
    const uint64_t live_gen = by_key_.at(key).attach_gen;
    if (live_gen == attach.attach_gen() && by_key_.at(key).sink == sink) return;  // the same message again: same answer
    if (live_gen >= attach.attach_gen()) {
      return Refuse(sink, attach,
                    absl::AbortedError(StrCat("attach_gen ", attach.attach_gen(), " is fenced by ", live_gen)),
                    scheduler);
    }
    scheduler.Cancel(key, now);
    if (Drop(key)) replaces = key;
  }
  if (replaces && attach.ticket().empty()) tickets_->OnEnded(*std::exchange(replaces, std::nullopt));
  const absl::Status begun = Begin(sink, attach, replaces, scheduler, now);
  if (begun.ok()) return;
  if (replaces) tickets_->OnEnded(*replaces);
  Refuse(sink, attach, begun, scheduler);
}

/// An error: nothing was begun.
absl::Status RelayBook::Begin(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach,
                              std::optional<engine::RequestKey> replaces, engine::Scheduler& scheduler, TimePoint now) {
  if (draining_) return absl::UnavailableError("this worker is draining");
  if (!attach.ticket().empty() && tickets_ == nullptr)
    return absl::UnavailableError("this worker takes no tickets: its role is not `decode` now");
  const engine::RequestKey key = next_key_++;
  BATON_ASSIGN_OR_RETURN(engine::Request request, DecodeAttach(attach, limits_, key, now));
  if (attach.output_len_so_far() > 0 && PlantedBug("an answer that goes on has no grammar"))
    request.sampling.grammar = nullptr;

  Live live{.sink = sink, .request_id = attach.key().request_id(), .attach_gen = attach.attach_gen()};
  live.prompt_len = request.prompt_len;
  live.first_choice = request.sequence_index;
  live.choices = live.choices_left = request.sampling.n;
  const int32_t credit = request.credit;
  live.scores_open = request.sampling.prompt_logprobs >= 0;
  live.prompt_scores_left = live.scores_open ? request.prompt_len - 1 : 0;
  live.ticket = !attach.ticket().empty();
  if (!live.ticket && attach.lease_ms() > 0) {
    live.renewed_for = std::chrono::milliseconds(attach.lease_ms());
    live.ends = Listened(now) + live.renewed_for;
  }
  if (!live.ticket) {
    BATON_RETURN_IF_ERROR(scheduler.AddRequest(std::move(request), now));
  } else if (live.choices < 1 || live.choices > scheduler.options().max_num_seqs) {
    return absl::InvalidArgumentError(StrCat("n = ", live.choices, " choices"));
  }
  live.credit.assign(static_cast<size_t>(live.choices), credit);  // n was checked
  if (live.ticket) live.cancelled.resize(live.credit.size());
  live.attached = now;
  const bool ticket = live.ticket;
  by_request_[NameOf(*sink, live.request_id)] = key;
  by_key_.emplace(key, std::move(live));
  if (!ticket) return absl::OkStatus();
  const absl::Status taken = AttachTicket(attach, std::move(request), replaces, scheduler);
  if (!taken.ok()) EndWithError(key, taken);
  return absl::OkStatus();
}

absl::Status RelayBook::AttachTicket(const v1::Attach& attach, engine::Request request,
                                     std::optional<engine::RequestKey> replaces, engine::Scheduler& scheduler) {
  Live& live = by_key_.at(request.key);
  TicketAttach ticket{
      attach.ticket(), attach.key().epoch(), attach.attach_gen(), attach.position(), std::move(request), {}, replaces};
  for (const v1::FirstToken& first : attach.first()) {
    if (first.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) ticket.first.push_back(DecodeFirst(first));
  }
  if (attach.first_size() > 0) {
    ticket.request.sampling.prompt_logprobs = -1;  // sent by the prefill leg
    live.scores_open = false;
    if (!ticket.request.sampling.use_beam_search) live.choices_left = static_cast<int>(ticket.first.size());
  }
  return tickets_->OnAttach(std::move(ticket), scheduler);
}

void RelayBook::OnStarted(engine::RequestKey key, TicketStart how, engine::Scheduler& scheduler, TimePoint now) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  Live& live = found->second;
  live.started = now;
  live.handed_over = how == TicketStart::kHandedOver;
  if (how == TicketStart::kComputedAgain) {
    live.skip_below = live.prompt_len + 1;
    live.choices_left = live.choices;
  }
  for (uint32_t choice = 0; choice < live.cancelled.size(); ++choice) {
    if (live.cancelled[choice]) scheduler.CancelSequence(key, live.first_choice + choice, now);
  }
}

void RelayBook::EndWithError(engine::RequestKey key, const absl::Status& status) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const Live& live = found->second;
  for (int32_t i = 0; i < live.choices; ++i) {
    v1::RelayEntry entry;
    entry.set_request_id(live.request_id);
    entry.set_attach_gen(live.attach_gen);
    entry.set_index(live.first_choice + static_cast<uint32_t>(i));
    entry.set_position(static_cast<uint64_t>(live.prompt_len));
    entry.set_finish_reason(v1::FINISH_REASON_ERROR);
    *entry.mutable_error() = EncodeError(status, 0, 0);
    SendNow(*live.sink, std::move(entry));
  }
  Forget(key);
}

void RelayBook::Refuse(const std::shared_ptr<RelayWriter>& sink, const v1::Attach& attach, const absl::Status& status,
                       const engine::Scheduler& scheduler) {
  uint32_t queue_ms = 0, retry_ms = 0;
  if (absl::IsResourceExhausted(status)) {
    queue_ms = static_cast<uint32_t>(Milliseconds(scheduler.Load().predicted_wait));
    retry_ms = std::max(queue_ms, 100u);
  }
  const bool listed = !attach.choices().empty();
  const int asked = listed ? attach.choices_size() : attach.sampling().has_n() ? attach.sampling().n() : 1;
  v1::RelayDown down;
  for (int i = 0; i < std::clamp(asked, 1, kMostRefused); ++i) {
    const uint32_t choice = listed ? attach.choices(i) : static_cast<uint32_t>(i);
    *down.add_entries() = ErrorEntry(attach, choice, EncodeError(status, retry_ms, queue_ms));
  }
  sink->Send(std::move(down));
}

const engine::RequestKey* RelayBook::OwnedBy(const RelayWriter* sink, const std::string& request_id) const {
  const auto found = by_request_.find(NameOf(*sink, request_id));
  const bool owned = found != by_request_.end() && by_key_.at(found->second).sink.get() == sink;
  return owned ? &found->second : nullptr;
}

void RelayBook::OnCredit(const RelayWriter* sink, const v1::Credit& credit, engine::Scheduler& scheduler,
                         TimePoint now) {
  const engine::RequestKey* const key = OwnedBy(sink, credit.request_id());
  if (key == nullptr) return;  // ended meanwhile
  Live& live = by_key_.at(*key);
  const size_t choice = credit.index() - live.first_choice;
  if (live.attach_gen != credit.attach_gen() || credit.index() < live.first_choice || choice >= live.credit.size())
    return;
  const int64_t position = static_cast<int64_t>(live.credit[choice]) + credit.tokens();
  live.credit[choice] = static_cast<int32_t>(std::min<int64_t>(position, engine::kUnlimitedCredit));
  scheduler.SetCredit(*key, credit.index(), live.credit[choice], now);
}

void RelayBook::OnRenewal(const RelayWriter& sink, const v1::Renewal& renewal, TimePoint now) {
  const auto found = by_request_.find(NameOf(sink, renewal.key().request_id()));
  if (found == by_request_.end()) return;
  Live& live = by_key_.at(found->second);
  if (live.renewed_for > Duration::zero() && live.attach_gen == renewal.attach_gen())
    live.ends = Listened(now) + live.renewed_for;
}

/// The time that a router's silence is judged by.
TimePoint RelayBook::Listened(TimePoint now) const { return PlantedBug("renewal after clock") ? now : own_.Now(); }

void RelayBook::Tick(engine::Scheduler& scheduler, TimePoint now) {
  own_.Tick(now);
  std::vector<engine::RequestKey> lapsed;
  for (const auto& [key, live] : by_key_) {
    if (Listened(now) >= live.ends) lapsed.push_back(key);
  }
  std::ranges::sort(lapsed);  // the same order in every run
  for (engine::RequestKey key : lapsed) {
    scheduler.Cancel(key, now);
    EndWithError(key, absl::AbortedError("no router has renewed this leg"));
  }
}

void RelayBook::OnCancel(const RelayWriter* sink, const v1::RelayCancel& cancel, engine::Scheduler& scheduler,
                         TimePoint now) {
  const engine::RequestKey* const owned = OwnedBy(sink, cancel.request_id());
  if (owned == nullptr || by_key_.at(*owned).attach_gen > cancel.attach_gen()) return;
  const engine::RequestKey key = *owned;
  if (cancel.has_index()) {
    Live& live = by_key_.at(key);
    const uint32_t choice = cancel.index() - live.first_choice;  // wraps where it is less
    if (choice >= static_cast<uint32_t>(live.choices)) return;
    const bool waits = live.ticket && live.started == TimePoint{};  // its KV is still on the way
    if (!scheduler.CancelSequence(key, cancel.index(), now) && waits) live.cancelled[choice] = true;
  } else if (!scheduler.Cancel(key, now)) {
    Forget(key);  // its KV is still on the way
  }
}

void RelayBook::OnStreamEnd(const RelayWriter* sink, engine::Scheduler& scheduler, TimePoint now) {
  std::vector<engine::RequestKey> lost;
  for (const auto& [key, live] : by_key_) {
    if (live.sink.get() == sink) lost.push_back(key);
  }
  std::ranges::sort(lost);
  for (engine::RequestKey key : lost) {
    scheduler.Cancel(key, now);
    Forget(key);
  }
  if (!lost.empty()) LogInfo("worker: a router left; {} requests cancelled", lost.size());
}

bool RelayBook::Drop(engine::RequestKey key) {
  auto live = by_key_.find(key);
  if (live == by_key_.end()) return false;
  if (auto by_id = by_request_.find(NameOf(*live->second.sink, live->second.request_id));
      by_id != by_request_.end() && by_id->second == key)
    by_request_.erase(by_id);
  const bool ticket = live->second.ticket;
  by_key_.erase(live);
  return ticket;
}

void RelayBook::Forget(engine::RequestKey key) {
  if (Drop(key)) tickets_->OnEnded(key);
}

void RelayBook::AddNews(Live& live, const engine::SequenceOutput& output, v1::RelayDown& down) {
  const std::vector<std::string> pieces = EncodePromptLogprobs(output.prompt_logprobs, kPieceBytes);
  live.prompt_scores_left -= static_cast<int32_t>(output.prompt_logprobs.size());
  const auto stamp = [&](v1::RelayEntry entry, bool after_scores) {
    entry.set_request_id(live.request_id);
    entry.set_attach_gen(live.attach_gen);
    if (!live.accepted) {
      live.accepted = true;
      entry.mutable_accepted()->set_cached_tokens(static_cast<uint32_t>(output.cached_tokens));
      entry.mutable_accepted()->set_queue_ms(static_cast<uint32_t>(Milliseconds(output.timings.queued)));
    }
    // A prompt of one token has no scores: then the first news says that they are complete.
    if (after_scores && live.prompt_scores_left <= 0 && std::exchange(live.scores_open, false))
      entry.set_prompt_logprobs_last(true);
    *down.add_entries() = std::move(entry);
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    v1::RelayEntry entry;
    entry.set_index(output.sequence_index);
    entry.set_position(static_cast<uint64_t>(output.position));
    entry.set_prompt_logprobs(pieces[i]);
    stamp(std::move(entry), i + 1 == pieces.size());
  }
  if (output.tokens.empty() && output.finish == engine::FinishReason::kNone && live.accepted) return;
  v1::RelayEntry entry = EncodeOutput(output);
  if (live.handed_over && entry.has_timings())
    StampTicketTimings(live.started - live.attached, output.timings, *entry.mutable_timings());
  stamp(std::move(entry), true);
}

/// The message of `outbox` to `sink`; a new one stands behind those to others.
v1::RelayDown& RelayBook::MessageTo(const std::shared_ptr<RelayWriter>& sink, Outbox& outbox) {
  auto found = std::ranges::find(outbox, sink, &Outbox::value_type::first);
  if (found == outbox.end()) found = outbox.emplace(outbox.end(), sink, v1::RelayDown());
  return found->second;
}

void RelayBook::OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  Outbox outbox;
  for (const engine::SequenceOutput& output : outputs) {
    auto live = by_key_.find(output.key);
    if (live == by_key_.end()) continue;
    AddNews(live->second, WithoutFirst(output, live->second.skip_below), MessageTo(live->second.sink, outbox));
    if (output.finish != engine::FinishReason::kNone && --live->second.choices_left == 0) Forget(output.key);
  }
  for (auto& [sink, down] : outbox) {
    down.set_step(step);
    sink->Send(std::move(down));
  }
}

}  // namespace baton::worker
