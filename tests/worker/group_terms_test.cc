// Ranks of one worker that would not understand each other are refused before they load.
#include "worker/ranks/group_terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_replace.h"
#include "common/str_cat.h"
#include "engine/parallel/local_communicator.h"
#include "engine/parallel/tcp_mesh.h"
#include "kvtransfer/rank_line_codec.h"

namespace baton::worker {
namespace {

/// What rank 0 says where the other rank has these terms.
absl::Status Agreed(const std::string& mine, const std::string& theirs) {
  const auto world = engine::MakeLocalGroup(2);
  std::thread other([&] { EXPECT_FALSE(AgreeOnTerms(world[1].get(), theirs).ok() && mine != theirs); });
  const absl::Status status = AgreeOnTerms(world[0].get(), mine);
  other.join();
  return status;
}

TEST(GroupTerms, RanksThatSaySlotsInAnotherFormAreRefusedByName) {
  const std::string mine = TermsOf("digest", kernels::OpsTraits{}), form = StrCat("orders of form ", kRankLineForm);
  EXPECT_TRUE(Agreed(mine, mine).ok());
  const absl::Status refused = Agreed(mine, absl::StrReplaceAll(mine, {{form, "orders of form 99"}}));
  EXPECT_THAT(refused.ToString(), testing::HasSubstr(StrCat("rank 1 of 2 has orders of form 99, rank 0 has ", form)));
  const absl::Status older = Agreed(mine, absl::StrReplaceAll(mine, {{StrCat(form, "\n"), ""}}));
  EXPECT_THAT(older.ToString(), testing::HasSubstr(StrCat("rank 0 has ", form)));
}

TEST(GroupTerms, RanksWhoseFramesHaveAnotherFormAreRefusedByName) {
  const std::string mine = TermsOf(WorkerConfig{}), form = StrCat("frames of form ", engine::kFrameForm);
  EXPECT_TRUE(Agreed(mine, mine).ok());
  const absl::Status refused = Agreed(mine, absl::StrReplaceAll(mine, {{form, "frames of form 1"}}));
  EXPECT_THAT(refused.ToString(), testing::HasSubstr(StrCat("rank 1 of 2 has frames of form 1, rank 0 has ", form)));
}

TEST(GroupTerms, ARankThatIsToldTheDefaultOfItsSlotsAgreesWithOneThatIsNot) {
  WorkerConfig told;
  told.landing_slot_bytes = told.LandingSlotBytes();
  EXPECT_TRUE(Agreed(TermsOf(WorkerConfig{}), TermsOf(told)).ok());
  told.landing_slot_bytes = 65536;
  EXPECT_THAT(
      Agreed(TermsOf(WorkerConfig{}), TermsOf(told)).ToString(),
      testing::HasSubstr("rank 1 of 2 has --landing-slot-bytes 65536, rank 0 has --landing-slot-bytes 1048576"));
}

}  // namespace
}  // namespace baton::worker
