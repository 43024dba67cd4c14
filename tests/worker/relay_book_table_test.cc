// Every (state, event) pair of a request in the relay book, as one table: what its stream is sent, what the ticket host
// hears, requests that start (Run) or end (Stop) in the scheduler. "=": nothing at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/state_table.h"
#include "tests/worker/relay_fixture.h"

namespace baton::worker {
namespace {

class NotingHost final : public TicketHost {
 public:
  absl::Status OnAttach(TicketAttach attach, engine::Scheduler&) override {
    log += attach.replaces ? "HostTakes " : "HostAttach ", last = std::move(attach);
    return absl::OkStatus();
  }
  void OnEnded(engine::RequestKey) override { log += "HostEnded "; }
  std::string log;
  TicketAttach last;
};

class TableWorld {
 public:
  v1::Attach MakeAttach(uint64_t gen, bool ticket = false) const {
    v1::Attach a = worker::MakeAttach("r", gen, 20, 4);
    a.mutable_sampling()->set_n(2);
    a.set_lease_ms(4000);
    if (!ticket) return a;
    a.set_ticket("ticket"), a.set_position(21);
    for (uint32_t i = 0; i < 2; ++i) a.add_first()->set_index(i), a.mutable_first(static_cast<int>(i))->set_token_id(5);
    return a;
  }
  void Say(const v1::RelayUp& up, const std::shared_ptr<KeepingSink>& sink) {
    book.OnMessage(sink, up, h.scheduler(), h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), 0);
  }
  void Attach(const v1::Attach& attach) { Attach(attach, mine); }
  void Attach(const v1::Attach& attach, const std::shared_ptr<KeepingSink>& sink) {
    v1::RelayUp up;
    *up.add_attach() = attach;
    Say(up, sink);
  }
  void Cancel(uint64_t gen, int index = -1) { Cancel(gen, index, mine); }
  void Cancel(uint64_t gen, int index, const std::shared_ptr<KeepingSink>& sink) {
    v1::RelayUp up;
    v1::RelayCancel& c = *up.add_cancel();
    c.set_request_id("r"), c.set_attach_gen(gen);
    if (index >= 0) c.set_index(static_cast<uint32_t>(index));
    Say(up, sink);
  }
  void Renew(uint64_t gen) {
    v1::RelayUp up;
    v1::Renewal& r = *up.add_renewal();
    r.mutable_key()->set_request_id("r"), r.set_attach_gen(gen);
    Say(up, mine);
  }
  TableWorld() { book.Tick(h.scheduler(), h.now); }
  /// Time goes by, and this side listens.
  void Tick(int after_ms) {
    for (const TimePoint end = h.now + std::chrono::milliseconds(after_ms); h.now < end;) {
      h.now += std::min<Duration>(OwnTime::kTick, end - h.now);
      book.Tick(h.scheduler(), h.now);
    }
    book.OnOutputs(h.scheduler().TakeOutputs(), 0);
  }
  /// Time goes by while this side is stopped.
  void StandStill(int seconds) {
    h.now += std::chrono::seconds(seconds);
    book.Tick(h.scheduler(), h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), 0);
  }
  void Credit(uint64_t gen, uint32_t index) { Credit(gen, index, mine); }
  void Credit(uint64_t gen, uint32_t index, const std::shared_ptr<KeepingSink>& sink) {
    v1::RelayUp up;
    v1::Credit& c = *up.add_credit();
    c.set_request_id("r"), c.set_attach_gen(gen), c.set_index(index), c.set_tokens(1u << 31);
    Say(up, sink);
  }
  void End(const std::shared_ptr<KeepingSink>& sink) {
    book.OnStreamEnd(sink.get(), h.scheduler(), h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), 0);
  }
  bool Step() {
    engine::StepPlan plan = h.scheduler().PlanStep(h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), plan.step);
    if (plan.empty()) return false;
    const auto result = h.executor().Execute(plan);
    BATON_CHECK(result.ok());
    book.OnOutputs(h.scheduler().Commit(plan, *result, h.now), plan.step);
    return true;
  }
  /// As the ticket desk does when nothing came.
  void StartTicket() {
    ASSERT_TRUE(h.Add(host.last.request).ok());
    book.OnStarted(host.last.request.key, TicketStart::kComputedAgain, h.scheduler(), h.now);
  }
  int Requests() {
    const engine::SchedulerLoad load = h.scheduler().Load();
    return load.running_sequences + load.waiting_requests;
  }

  engine::SteppedEngine h{RelayOptions()};
  NotingHost host;
  RelayBook book{{.vocab_size = engine::kFakeVocab}, &host};
  std::shared_ptr<KeepingSink> mine = std::make_shared<KeepingSink>(), other = std::make_shared<KeepingSink>();
};

constexpr std::array kRelayStates = {"none", "Waiting", "Running", "Ticket", "Ticket runs", "Ended"};

/// Attached with generation 5, two choices.
void EnterRelay(TableWorld& w, const std::string& state) {
  if (state == "none") return;
  const bool ticket = state.starts_with("Ticket");
  w.Attach(w.MakeAttach(5, ticket));
  if (state == "Running") w.Step();
  if (state == "Ticket runs") w.StartTicket();
  if (state == "Ended") {
    while (w.Step()) continue;
  }
}

using ApplyToRelay = std::function<void(TableWorld&)>;
const std::vector<std::pair<std::string, ApplyToRelay>>& RelayEvents() {
  static const std::vector<std::pair<std::string, ApplyToRelay>> events = {
      {"Attach, same", [](TableWorld& w) { w.Attach(w.MakeAttach(5)); }},
      {"Attach, same on another stream", [](TableWorld& w) { w.Attach(w.MakeAttach(5), w.other); }},
      {"Attach, older", [](TableWorld& w) { w.Attach(w.MakeAttach(4), w.other); }},
      {"Attach, newer", [](TableWorld& w) { w.Attach(w.MakeAttach(6), w.other); }},
      {"Attach, newer with a ticket", [](TableWorld& w) { w.Attach(w.MakeAttach(6, true), w.other); }},
      {"Attach, newer and wrong",
       [](TableWorld& w) {
         v1::Attach a = w.MakeAttach(6);
         a.set_prompt_len(21);
         w.Attach(a, w.other);
       }},
      {"Attach, draining", [](TableWorld& w) { w.book.Drain(), w.Attach(w.MakeAttach(6), w.other); }},
      {"Credit", [](TableWorld& w) { w.Credit(5, 0); }},
      {"Credit, other generation", [](TableWorld& w) { w.Credit(4, 0); }},
      {"Credit on another stream", [](TableWorld& w) { w.Credit(5, 0, w.other); }},
      {"Cancel on another stream", [](TableWorld& w) { w.Cancel(5, -1, w.other); }},
      {"Cancel of a choice on another stream", [](TableWorld& w) { w.Cancel(5, 0, w.other); }},
      {"Credit, no such choice", [](TableWorld& w) { w.Credit(5, 2); }},
      {"Cancel", [](TableWorld& w) { w.Cancel(5); }},
      {"Cancel, older", [](TableWorld& w) { w.Cancel(4); }},
      {"Cancel, newer", [](TableWorld& w) { w.Cancel(6); }},
      {"Cancel choice 1", [](TableWorld& w) { w.Cancel(5, 1); }},
      {"Cancel choice 2 of 2", [](TableWorld& w) { w.Cancel(5, 2); }},
      {"Stream ends", [](TableWorld& w) { w.End(w.mine); }},
      {"Another stream ends", [](TableWorld& w) { w.End(w.other); }},
      {"Host: failed after all", [](TableWorld& w) { w.book.EndWithError(1, absl::UnavailableError("x")); }},
      {"Host: started", [](TableWorld& w) { w.book.OnStarted(1, TicketStart::kHandedOver, w.h.scheduler(), w.h.now); }},
      {"Tick", [](TableWorld& w) { w.Tick(3900); }},
      {"Tick, no renewal", [](TableWorld& w) { w.Tick(4000); }},
      {"Stood still 60 s", [](TableWorld& w) { w.StandStill(60); }},
      {"Stood still, then no renewal",
       [](TableWorld& w) {
         for (int i = 0; i < 12; ++i) w.StandStill(60), w.Tick(100);
       }},
      {"Tick, renewed", [](TableWorld& w) { w.Tick(3900), w.Renew(5), w.Tick(3900); }},
      {"Tick, an older attach renewed", [](TableWorld& w) { w.Tick(3900), w.Renew(4), w.Tick(3900); }},
      {"Step", [](TableWorld& w) { w.Step(); }},
      {"Run to the end",
       [](TableWorld& w) {
         while (w.Step()) continue;
       }},
  };
  return events;
}

std::string EntriesOf(const KeepingSink& sink, size_t from, const std::string& prefix) {
  int tokens = 0;
  std::string ends;
  for (size_t i = from; i < sink.messages.size(); ++i) {
    for (const v1::RelayEntry& e : sink.messages[i].entries()) {
      tokens += e.token_ids_size();
      if (e.finish_reason() == v1::FINISH_REASON_ERROR)
        ends +=
            "Error(" + std::string(absl::StatusCodeToString(static_cast<absl::StatusCode>(e.error().code()))) + ") ";
      if (e.finish_reason() == v1::FINISH_REASON_ABORT) ends += "Abort ";
      if (e.finish_reason() == v1::FINISH_REASON_LENGTH) ends += "End ";
    }
  }
  std::string text = (tokens > 0 ? std::to_string(tokens) + " tokens " : "") + ends;
  return text.empty() ? "" : prefix + text;
}

std::string Outcome(const std::string& state, const ApplyToRelay& apply) {
  TableWorld w;
  EnterRelay(w, state);
  const size_t live = w.book.live(), mine = w.mine->messages.size();
  const int requests = w.Requests();
  w.host.log.clear();
  apply(w);
  w.h.scheduler().CheckInvariants();
  std::string done = EntriesOf(*w.mine, mine, "") + EntriesOf(*w.other, 0, "other: ") + w.host.log;
  if (w.Requests() != requests) done += w.Requests() > requests ? "Run " : "Stop ";
  if (!done.empty()) done.pop_back();
  const auto known = [](size_t n) { return std::string(n > 0 ? "known" : "forgotten"); };
  return CellOf(known(live), known(w.book.live()), done);
}

// event | one cell per state
constexpr const char* kRelayTable = R"(
Attach, same                   | →known Run | = | = | = | = | →known Run
Attach, same on another stream | →known Run | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | →known Run
Attach, older                  | →known Run | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | other: Error(ABORTED) Error(ABORTED) | →known Run
Attach, newer                  | →known Run | = | Stop | HostEnded Run | HostEnded | →known Run
Attach, newer with a ticket    | →known HostAttach | HostAttach Stop | HostAttach Stop | HostTakes | HostTakes Stop | →known HostAttach
Attach, newer and wrong        | other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT) | →forgotten other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT) Stop | →forgotten other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT) Stop | →forgotten other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT) HostEnded | →forgotten other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT) HostEnded Stop | other: Error(INVALID_ARGUMENT) Error(INVALID_ARGUMENT)
Attach, draining               | other: Error(UNAVAILABLE) Error(UNAVAILABLE) | →forgotten other: Error(UNAVAILABLE) Error(UNAVAILABLE) Stop | →forgotten other: Error(UNAVAILABLE) Error(UNAVAILABLE) Stop | →forgotten other: Error(UNAVAILABLE) Error(UNAVAILABLE) HostEnded | →forgotten other: Error(UNAVAILABLE) Error(UNAVAILABLE) HostEnded Stop | other: Error(UNAVAILABLE) Error(UNAVAILABLE)
Credit                         | = | = | = | = | = | =
Credit, other generation       | = | = | = | = | = | =
Credit on another stream       | = | = | = | = | = | =
Cancel on another stream       | = | = | = | = | = | =
Cancel of a choice on another stream | = | = | = | = | = | =
Credit, no such choice         | = | = | = | = | = | =
Cancel                         | = | →forgotten Abort Abort Stop | →forgotten Abort Abort Stop | →forgotten HostEnded | →forgotten Abort Abort HostEnded Stop | =
Cancel, older                  | = | = | = | = | = | =
Cancel, newer                  | = | →forgotten Abort Abort Stop | →forgotten Abort Abort Stop | →forgotten HostEnded | →forgotten Abort Abort HostEnded Stop | =
Cancel choice 1                | = | Abort | Abort Stop | = | Abort | =
Cancel choice 2 of 2           | = | = | = | = | = | =
Stream ends                    | = | →forgotten Stop | →forgotten Stop | →forgotten HostEnded | →forgotten HostEnded Stop | =
Another stream ends            | = | = | = | = | = | =
Host: failed after all         | = | →forgotten Error(UNAVAILABLE) Error(UNAVAILABLE) | →forgotten Error(UNAVAILABLE) Error(UNAVAILABLE) | →forgotten Error(UNAVAILABLE) Error(UNAVAILABLE) HostEnded | →forgotten Error(UNAVAILABLE) Error(UNAVAILABLE) HostEnded | =
Host: started                  | = | = | = | = | = | =
Tick                           | = | = | = | = | = | =
Tick, no renewal | = | →forgotten Error(ABORTED) Error(ABORTED) Stop | →forgotten Error(ABORTED) Error(ABORTED) Stop | = | = | =
Stood still 60 s               | = | = | = | = | = | =
Stood still, then no renewal | = | →forgotten Error(ABORTED) Error(ABORTED) Stop | →forgotten Error(ABORTED) Error(ABORTED) Stop | = | = | =
Tick, renewed                  | = | = | = | = | = | =
Tick, an older attach renewed | = | →forgotten Error(ABORTED) Error(ABORTED) Stop | →forgotten Error(ABORTED) Error(ABORTED) Stop | = | = | =
Step                           | = | 2 tokens Run | 2 tokens | = | Run | =
Run to the end                 | = | →forgotten 8 tokens End End Stop | →forgotten 6 tokens End End Stop | = | →forgotten 6 tokens End End HostEnded Stop | =
)";

TEST(RelayBookTable, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(
      kRelayTable, kRelayStates, RelayEvents(),
      [](const auto&, const std::string& state, const ApplyToRelay& apply) { return Outcome(state, apply); });
}

}  // namespace
}  // namespace baton::worker
