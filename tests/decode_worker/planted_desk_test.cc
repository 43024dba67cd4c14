// Rules of the ticket desk for KV of other numerics, each kept and then broken on purpose: what they guard is noticed.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/planted_bug.h"
#include "tests/decode_worker/desk_world.h"

namespace baton {
namespace {

std::string_view planted;

}  // namespace

std::string_view PlantedBugInForce() { return planted; }

namespace decode_worker {
namespace {

/// Ticket 1 is asked for, and writer 7, whose numerics are not the desk's, opens its lane.
void OpenForeign(DeskWorld& w) {
  LaneHello hello = w.MakeHello("p7");
  hello.numerics_id = "n2";
  w.desk.OnHello(7, hello);
  w.Reserve();
  w.Open();
}

/// Two choices whose first tokens writer 7 drew, and whose KV was lost: how many are sent back to the router.
int ChoicesSentBack() {
  DeskWorld w;
  OpenForeign(w);
  v1::Attach attach = w.MakeAttach();
  attach.mutable_sampling()->set_n(2);
  v1::FirstToken& second = *attach.add_first();
  second.set_index(1), second.set_token_id(6);
  w.Closed();
  w.Attach(attach);
  int sent_back = 0;
  for (uint32_t choice : {0u, 1u}) {
    for (const v1::RelayEntry& told : w.sink->Of("r", choice))
      sent_back += told.error().code() == static_cast<int>(absl::StatusCode::kAborted);
  }
  return sent_back;
}

/// Tokens that the next prompt, which is the same, finds cached after writer 7 has handed one over.
int32_t CachedOfForeign() {
  DeskWorld w;
  OpenForeign(w);
  w.Fill(0), w.Fill(1), w.Done();
  w.Attach(w.MakeAttach());
  for (int step = 0; step < 20 && w.Step(); ++step) {
  }
  return w.Reserve("next").cached_tokens;
}

TEST(PlantedDesk, FirstTokensThatAreDrawnAgainAreNoticed) {
  planted = "";
  EXPECT_EQ(ChoicesSentBack(), 2);
  planted = "first tokens drawn again";
  EXPECT_NE(ChoicesSentBack(), 2);
}

TEST(PlantedDesk, ForeignKvThatIsPublishedIsNoticed) {
  planted = "";
  EXPECT_EQ(CachedOfForeign(), 0);
  planted = "foreign KV is published";
  EXPECT_GT(CachedOfForeign(), 0);
}

}  // namespace
}  // namespace decode_worker
}  // namespace baton
