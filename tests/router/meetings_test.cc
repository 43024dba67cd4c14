// Each prefill worker connects to a bounded number of decode workers before a request needs it.
#include "router/fleet/meetings.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

using Member = Meetings::Member;
using Meeting = Meetings::Meeting;

std::vector<Member> Members(int32_t prefills, int32_t decodes) {
  std::vector<Member> out;
  for (int32_t i = 0; i < prefills + decodes; ++i) out.push_back({i, i < prefills, i >= prefills});
  return out;
}

TEST(Meetings, InASmallFleetAllMeetWhoeverWasReadyFirst) {
  const std::vector<Member> all = Members(2, 2);
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    Meetings meetings;
    std::set<std::pair<int32_t, int32_t>> met;
    std::vector<Member> there;
    for (const size_t i : order) {
      there.push_back(all[i]);
      for (const Meeting& m : meetings.Ready(all[i], there)) EXPECT_TRUE(met.insert({m.prefill, m.decode}).second);
    }
    EXPECT_EQ(met, (std::set<std::pair<int32_t, int32_t>>{{0, 2}, {0, 3}, {1, 2}, {1, 3}}));
  }
}

TEST(Meetings, InALargeFleetEachPrefillWorkerMeetsSixteenAndNotAllTheSame) {
  const std::vector<Member> all = Members(40, 40);
  Meetings meetings;
  std::vector<int> of_prefill(80), of_decode(80);
  std::vector<Member> there(all.begin() + 40, all.end());
  for (int32_t p = 39; p >= 0; --p) {
    there.push_back(all[static_cast<size_t>(p)]);
    for (const Meeting& m : meetings.Ready(there.back(), there))
      ++of_prefill[static_cast<size_t>(m.prefill)], ++of_decode[static_cast<size_t>(m.decode)];
  }
  for (size_t p = 0; p < 40; ++p) EXPECT_EQ(of_prefill[p], 16) << p;
}

TEST(Meetings, ADecodeWorkerThatComesBackIsMetByThoseWhoMetIt) {
  Meetings meetings;
  const std::vector<Member> all = Members(1, 17);
  EXPECT_EQ(meetings.Ready(all[0], all).size(), 16u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(meetings.Ready(all[5], all), (std::vector<Meeting>{{0, 5}})) << "for the " << i << "th time";
    EXPECT_TRUE(meetings.Ready(all[17], all).empty()) << "it is the seventeenth";
  }
  EXPECT_EQ(meetings.Ready(all[0], all).size(), 16u) << "a prefill worker that comes back knows nobody";
}

TEST(Meetings, WhoIsGoneMakesRoom) {
  Meetings meetings;
  std::vector<Member> all = Members(1, 17);
  EXPECT_EQ(meetings.Ready(all[0], all).size(), 16u);
  EXPECT_TRUE(meetings.Ready(all[17], all).empty());
  all.erase(all.begin() + 5);
  EXPECT_EQ(meetings.Ready(all.back(), all), (std::vector<Meeting>{{0, 17}}));
}

TEST(Meetings, AWorkerThatDoesBothMeetsNobody) {
  Meetings meetings;
  EXPECT_TRUE(meetings.Ready({0, false, false}, std::vector<Member>{{0, false, false}, {1, true, false}}).empty());
}

TEST(Meetings, WhoSharesNoKvProtocolDoesNotMeet) {
  std::vector<Member> all = Members(2, 2);
  all[1].kv_protocol = {5, 6}, all[3].kv_protocol = {6, 6};
  Meetings meetings;
  EXPECT_EQ(meetings.Ready(all[1], all), (std::vector<Meeting>{{1, 3}}));
  EXPECT_EQ(meetings.Ready(all[2], all), (std::vector<Meeting>{{0, 2}}));
}

}  // namespace
}  // namespace baton::router
