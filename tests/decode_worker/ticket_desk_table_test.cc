// Every (state, event) pair of a ticket at the desk, as one table: next state, what the writer is sent (Bound, GoneL
// …), what the router is answered, requests that start (Run) or end (Stop) in the scheduler, blocks taken and returned.
// "=": nothing at all. "dies": cannot come from outside, so it is our bug.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>

#include "desk_world.h"
#include "tests/state_table.h"

namespace baton::decode_worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array kDeskStates = {"none",    "Reserved", "Receiving", "Parked", "Ready",
                                    "Running", "Repair",   "Closing",   "Gone"};

std::string StateName(const DeskWorld& w) {
  const decode::Ticket* ticket = w.desk.Find(1);
  if (ticket == nullptr) return "none";
  if (ticket->parked) return "Parked";
  constexpr std::array kNames = {"Reserved", "Receiving", "Ready", "Running", "Repair", "Closing", "Gone"};
  return kNames[static_cast<size_t>(ticket->state)];
}

/// Receiving: segment 0 is being placed, slot 1 is granted and empty. Parked: so, and the router has attached. Repair,
/// Closing: as Receiving, then the lane was closed / the ticket cancelled. Ready, Running: complete, not closed.
void EnterDesk(DeskWorld& w, const std::string& state) {
  if (state == "none") return;
  w.Reserve();
  if (state == "Reserved") return;
  if (state == "Gone") return void(w.desk.Cancel({"r", 0}));
  w.Open();
  if (state == "Ready" || state == "Running") {
    w.Fill(0), w.Fill(1), w.Done();
    if (state == "Running") w.Attach(w.MakeAttach());
    return;
  }
  w.desk.OnLane(7, SlotFull{{1, 1, 0}, {0, 1}, {0}});
  if (state == "Parked") w.Attach(w.MakeAttach());
  if (state == "Repair") w.Closed();
  if (state == "Closing") w.desk.Cancel({"r", 0});
}

using ApplyToDesk = std::function<void(DeskWorld&)>;

void SayCancel(DeskWorld& w) { w.log += w.desk.Cancel({"r", 0}) ? "Cancelled " : "Tombstone "; }

void OpenAs(DeskWorld& w, const std::function<void(LaneHello&)>& change) {
  LaneHello hello = w.MakeHello("p9");
  change(hello);
  w.desk.OnHello(9, hello);
  w.Open(9);
}

using Event = std::pair<std::string, ApplyToDesk>;
const Event kReservations[] = {
    {"Reserve", [](auto& w) { w.Reserve(); }},
    {"Reserve, its session is over",
     [](auto& w) {
       decode::ReserveOrder order = w.MakeReserve();
       order.session = "other";
       w.desk.OnRouterLeft("other"), w.Reserve(order);
     }},
    {"Reserve, draining", [](auto& w) { w.desk.Drain(), w.Reserve(); }},
    {"Reserve, too long",
     [](auto& w) {
       decode::ReserveOrder order = w.MakeReserve("long");
       order.prompt_len = 300, order.prompt.clear();
       w.Reserve(order);
     }},
    {"Reserve, tokens missing",
     [](auto& w) {
       decode::ReserveOrder order = w.MakeReserve("short");
       order.prompt.pop_back();
       w.Reserve(order);
     }},
    {"Cancel", [](auto& w) { SayCancel(w); }},
    {"Router left", [](auto& w) { w.desk.OnRouterLeft("session"); }},
    {"Another router left", [](auto& w) { w.desk.OnRouterLeft("other"); }},
};

const Event kLanes[] = {
    {"Hello", [](auto& w) { w.Hello(7); }},
    {"Open", [](auto& w) { w.Open(); }},
    {"Open, no hello", [](auto& w) { w.Open(9); }},
    {"Open, other model", [](auto& w) { OpenAs(w, [](LaneHello& h) { h.model_digest = "x"; }); }},
    {"Open, other digests", [](auto& w) { OpenAs(w, [](LaneHello& h) { h.kv_digest = "off"; }); }},
    {"Open, other protocol", [](auto& w) { OpenAs(w, [](LaneHello& h) { h.protocol = {99, 99}; }); }},
    {"Open, other heads",
     [](auto& w) { OpenAs(w, [](LaneHello& h) { h.side.layout.groups[0].planes[0].heads = 2; }); }},
    {"Open, other numerics", [](auto& w) { OpenAs(w, [](LaneHello& h) { h.numerics_id = "x"; }); }},
    {"Open, other plan",
     [](auto& w) {
       OpenLane open = w.MakeOpen();
       ++open.plan_digest;
       w.desk.OnLane(7, open);
     }},
    {"Open, next epoch", [](auto& w) { w.Open(8, 2); }},
    {"SlotFull", [](auto& w) { w.desk.OnLane(7, SlotFull{{1, 1, 0}, {1, 1}, {1}}); }},
    {"SlotFull, no such segment", [](auto& w) { w.desk.OnLane(7, SlotFull{{1, 1, 0}, {1, 1}, {2}}); }},
    {"LaneDone", [](auto& w) { w.Done(); }},
    {"Closed", [](auto& w) { w.Closed(); }},
    {"Closed, dirty", [](auto& w) { w.Closed(false); }},
    {"Scattered", [](auto& w) { w.desk.Handle(decode::Scattered{{1, 1, 0}, {0, 1}, true}); }},
    {"Scattered, digest bad", [](auto& w) { w.desk.Handle(decode::Scattered{{1, 1, 0}, {0, 1}, false}); }},
    {"Writer lost", [](auto& w) { w.desk.OnWriterGone(7, false); }},
    {"Writer fenced", [](auto& w) { w.desk.OnWriterGone(7, true); }},
};

const Event kAttaches[] = {
    {"Attach", [](auto& w) { w.Attach(w.MakeAttach()); }},
    {"Attach, newer", [](auto& w) { w.Attach(w.MakeAttach(2)); }},
    {"Attach, next epoch", [](auto& w) { w.Attach(w.MakeAttach(2, 2)); }},
    {"Attach, no prefill", [](auto& w) { w.Attach(w.MakeAttach(2, 0)); }},
    {"Attach, other prompt",
     [](auto& w) {
       v1::Attach a = w.MakeAttach(2);
       a.set_prompt_token_ids(worker::TokenBytes(engine::RandomTokens(1, 39))), a.set_prompt_len(39),
           a.set_position(40);
       w.Attach(a);
     }},
    {"Attach, old life",
     [](auto& w) {
       v1::Attach a = w.MakeAttach(2);
       v1::Ticket ticket;
       ticket.set_id(1), ticket.set_incarnation("d0");
       a.set_ticket(ticket.SerializeAsString());
       w.Attach(a);
     }},
    {"Attach, no ticket in it",
     [](auto& w) {
       v1::Attach a = w.MakeAttach(2);
       a.set_ticket("\xff\xff");
       w.Attach(a);
     }},
    {"Relay cancel", [](auto& w) { w.RelayCancel(); }},
    {"Relay ends", [](auto& w) { w.book.OnStreamEnd(w.sink.get(), w.h.scheduler(), w.h.now); }},
    {"Run to the end", [](auto& w) { w.RunAll(); }},
};

const Event kTime[] = {
    {"Shed", [](auto& w) { w.log += w.desk.Shed() ? "Room " : "NoRoom "; }},
    {"Tick", [](auto& w) { w.desk.Tick(); }},
    {"Tick, 4.5 s of silence", [](auto& w) { w.Listen(milliseconds(4500)); }},
    {"Stood still 9 s", [](auto& w) { w.StandStill(seconds(9)); }},
    {"Stood still 59 s", [](auto& w) { w.StandStill(seconds(59)); }},
    {"Tick, no lease", [](auto& w) { w.Listen(seconds(6)); }},
    {"Tick, renewed",
     [](auto& w) {
       for (int i = 0; i < 3; ++i) w.Listen(seconds(1)), w.desk.Renew({"r", 0}, 1);
       w.Listen(milliseconds(2500));
     }},
    {"Tick, expired",
     [](auto& w) {
       for (int i = 0; i < 3; ++i) w.Listen(seconds(4)), w.desk.Renew({"r", 0}, 1);
     }},
    {"Tick, long after", [](auto& w) { w.Listen(seconds(80)); }},
};

std::vector<Event> Events() {
  std::vector<Event> events;
  for (const auto& some : {std::span<const Event>(kReservations), std::span<const Event>(kLanes),
                           std::span<const Event>(kAttaches), std::span<const Event>(kTime)})
    events.insert(events.end(), some.begin(), some.end());
  return events;
}

std::string Outcome(const std::string& state, const ApplyToDesk& apply) {
  DeskWorld w;
  w.lease = seconds(5);
  EnterDesk(w, state);
  const std::string before = StateName(w);
  EXPECT_EQ(before, state);
  const int32_t used = w.h.cache().pool(0).used_blocks();
  const int requests = w.Requests();
  const size_t sent = w.sink->messages.size();
  w.landing.log.clear(), w.log.clear();
  apply(w);
  w.CheckOwners();
  std::string done = w.log + w.landing.log;
  for (size_t i = sent; i < w.sink->messages.size(); ++i) {
    for (const v1::RelayEntry& entry : w.sink->messages[i].entries()) {
      if (entry.has_error())
        done += "Error(" + std::string(absl::StatusCodeToString(static_cast<absl::StatusCode>(entry.error().code()))) +
                ") ";
      if (entry.finish_reason() == v1::FINISH_REASON_LENGTH) done += "Answer ";
    }
  }
  if (w.Requests() != requests) done += w.Requests() > requests ? "Run " : "Stop ";
  if (const int32_t change = w.h.cache().pool(0).used_blocks() - used; change != 0) {
    done += (change > 0 ? "+" : "") + std::to_string(change) + " ";
  }
  if (!done.empty()) done.pop_back();
  return CellOf(before, StateName(w), done);
}

bool Dies(const std::string& event, const std::string& state) {
  const bool placing = state == "Receiving" || state == "Parked" || state == "Repair" || state == "Closing";
  return event.starts_with("Scattered") && !placing;
}

// event | one cell per state
constexpr const char* kDeskTable = R"(
Reserve                      | →Reserved Ticket | Ticket | Ticket | Ticket | Ticket | Ticket | Ticket | Nack(CANCELLED) | Nack(CANCELLED)
Reserve, its session is over | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED) | Nack(CANCELLED)
Reserve, draining            | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE) | Nack(UNAVAILABLE)
Reserve, too long            | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT)
Reserve, tokens missing      | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT)
Cancel                       | Tombstone | →Gone Cancelled | →Closing Cancelled GoneL | →Closing Cancelled GoneL Error(UNAVAILABLE) | →Closing Cancelled -3 | →Closing Cancelled Error(UNAVAILABLE) Stop -3 | →Closing Cancelled | Cancelled | Cancelled
Router left                  | = | →Gone | →Closing GoneL | = | →Closing -3 | = | →Closing | = | =
Another router left          | = | = | = | = | = | = | = | = | =
Hello                        | = | = | = | = | = | = | = | = | =
Open                         | GoneL | →Receiving Bound +3 | Bound | Bound | Bound | Bound | GoneL | GoneL | GoneL
Open, no hello               | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other digests          | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other model            | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other protocol         | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other heads            | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other numerics         | GoneL | →Receiving Bound +3 | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, other plan             | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open, next epoch             | GoneL | →Receiving Bound +3 | GoneL Bound +3 | →Closing GoneL GoneL Bound Error(UNAVAILABLE) | →Receiving Bound | GoneL | →Receiving Bound +3 | GoneL | GoneL
SlotFull                     | GoneL | GoneL | Place | Place | Free | Free | GoneL | GoneL | GoneL
SlotFull, no such segment    | GoneL | GoneL | →Repair GoneL | →Running GoneL Run | Free | Free | GoneL | GoneL | GoneL
LaneDone                     | GoneL | GoneL | = | = | Verified | Verified | GoneL | GoneL | GoneL
Closed                       | Ack | Ack | →Repair Ack | →Running Ack Run | Ack | Ack | Ack | Ack | Ack
Closed, dirty                | Ack | Ack | →Repair Ack Cut GoneL | →Running Ack Cut GoneL Run | Ack Cut | Ack Cut | Ack | Ack Cut | Ack
Scattered                       | dies | dies | Free | Free | dies | dies | -3 | -3 | dies
Scattered, digest bad           | dies | dies | Again | Again | dies | dies | -3 | -3 | dies
Writer lost                  | Release | Release | →Repair GoneL Cut | →Running GoneL Cut Run | Cut | Cut | Release | Cut | Release
Writer fenced                | = | = | →Repair | →Running Run | = | = | = | = | =
Attach                       | Error(UNAVAILABLE) | →Gone Error(UNAVAILABLE) | →Parked | = | →Running Run | = | →Running Run | Error(UNAVAILABLE) | Error(UNAVAILABLE)
Attach, newer                | Error(UNAVAILABLE) | →Gone Error(UNAVAILABLE) | →Parked | = | →Running Run | -3 | →Running Run | Error(UNAVAILABLE) | Error(UNAVAILABLE)
Attach, next epoch           | Error(UNAVAILABLE) | →Gone Error(UNAVAILABLE) | →Closing GoneL Error(UNAVAILABLE) | →Closing GoneL Error(UNAVAILABLE) | →Closing Error(UNAVAILABLE) -3 | -3 | →Closing Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(UNAVAILABLE)
Attach, no prefill           | Error(UNAVAILABLE) | →Running Run | →Running GoneL Run | →Running GoneL Run | →Running Run -3 | -3 | →Running Run | Error(UNAVAILABLE) | Error(UNAVAILABLE)
Attach, other prompt         | Error(UNAVAILABLE) | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | →Closing GoneL Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | →Closing Error(INVALID_ARGUMENT) Stop -3 | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT)
Attach, old life             | Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(UNAVAILABLE) | →Closing GoneL Error(UNAVAILABLE) | Error(UNAVAILABLE) | →Closing Error(UNAVAILABLE) Stop -3 | Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(UNAVAILABLE)
Attach, no ticket in it      | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | →Closing GoneL Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | →Closing Error(INVALID_ARGUMENT) Stop -3 | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT)
Relay cancel                 | = | = | = | →Closing GoneL | = | →Closing Stop -3 | = | = | =
Relay ends                   | = | = | = | →Closing GoneL | = | →Closing Stop -3 | = | = | =
Run to the end               | = | = | = | = | = | →Closing Answer Stop -3 | = | = | =
Shed                         | NoRoom | NoRoom | NoRoom | NoRoom | NoRoom | NoRoom | NoRoom | NoRoom | NoRoom
Tick                         | = | = | = | = | = | = | = | = | =
Tick, 4.5 s of silence       | = | = | = | →Running GoneL Cut Run | Cut | Cut | = | Cut | =
Stood still 9 s              | = | = | = | = | = | = | = | = | =
Stood still 59 s             | = | →Gone | →Closing GoneL | →Closing GoneL Error(UNAVAILABLE) | →Closing -3 | = | →Closing | = | =
Tick, no lease | = | →Gone | →Closing GoneL | →Closing GoneL Cut Error(ABORTED) | →Closing Cut -3 | →Closing Cut Error(ABORTED) Stop -3 | →Closing | Cut | =
Tick, renewed                | = | = | = | →Running GoneL Cut Run | Cut | Cut | = | Cut | =
Tick, expired                | = | →Gone | →Closing GoneL | →Running GoneL Cut Run | →Closing Cut -3 | Cut | →Closing | Cut | =
Tick, long after | = | →none | →Closing GoneL Cut | →Closing GoneL Cut Error(ABORTED) | →Closing Cut -3 | →Closing Cut Error(ABORTED) Stop -3 | →Closing | Cut | →none
)";

TEST(TicketDeskTable, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(kDeskTable, kDeskStates, Events(),
                  [](const std::string& event, const std::string& state, const ApplyToDesk& apply) {
                    return Dies(event, state) ? "dies" : Outcome(state, apply);
                  });
}

}  // namespace
}  // namespace baton::decode_worker
