#include "router/admission/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/str_cat.h"
#include "router/admission/key_account.h"
#include "router/admission/request_ids.h"
#include "router/request/text_pool.h"

namespace baton::router {
namespace {

template <class T>
bool Ok(const std::variant<T, ApiError>& v) {
  return std::holds_alternative<T>(v);
}

// Within 10 s.
bool Soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Admission, PlacesAreBoundedAndGivenBack) {
  Admission admission(2, 1000);
  auto first = admission.Enter({}, {});
  {
    auto second = admission.Enter({}, {});
    ASSERT_TRUE(Ok(first) && Ok(second));
    const auto third = admission.Enter({}, {});
    ASSERT_FALSE(Ok(third));
    const ApiError& error = std::get<ApiError>(third);
    EXPECT_EQ(error.http_status, 429);
    EXPECT_EQ(error.overload->queue_length, 2);
    EXPECT_GE(error.retry_after_ms, 1000);
    EXPECT_EQ(error.grpc_code, absl::StatusCode::kResourceExhausted);
    EXPECT_NE(error.message.find("2"), std::string::npos);
  }
  EXPECT_EQ(admission.running(), 1);
  EXPECT_TRUE(Ok(admission.Enter({}, {})));
}

TEST(Admission, TokensAreBoundedButOneLargeRequestFits) {
  Admission admission(10, 100);
  {
    auto large = admission.EnterTokens(5000, {});
    EXPECT_TRUE(Ok(large)) << "alone it may be larger than the limit, else it could never run";
    EXPECT_FALSE(Ok(admission.EnterTokens(1, {})));
  }
  auto half = admission.EnterTokens(60, {});
  EXPECT_FALSE(Ok(admission.EnterTokens(60, {})));
  EXPECT_TRUE(Ok(admission.EnterTokens(40, {})));
}

TEST(Admission, ATicketThatMovedReturnsItsPlaceOnce) {
  Admission admission(10, 100);
  auto entered = admission.Enter({}, {});
  AdmissionHold a = std::move(std::get<AdmissionHold>(entered));
  AdmissionHold b = std::move(a);
  a = std::move(b);
  EXPECT_EQ(admission.running(), 1);
  a = AdmissionHold();
  EXPECT_EQ(admission.running(), 0);
}

TEST(Admission, DrainingRefusesAndWaitsForTheRest) {
  Admission admission(10, 100);
  const TimePoint drains{std::chrono::seconds(5)};
  auto running = admission.Enter({}, {});
  admission.Drain(drains);
  const auto refused = admission.Enter(drains + Duration(1), drains + Duration(1));
  EXPECT_EQ(std::get<ApiError>(refused).http_status, 503);
  EXPECT_GT(std::get<ApiError>(refused).retry_after_ms, 0);
  EXPECT_FALSE(admission.WaitEmpty(std::chrono::milliseconds(1)));
  std::thread other(
      [moved = std::move(std::get<AdmissionHold>(running))]() mutable { AdmissionHold gone(std::move(moved)); });
  EXPECT_TRUE(admission.WaitEmpty(std::chrono::seconds(10)));
  other.join();
}

TEST(Admission, WhatWasOnItsWayWhenADrainBeganIsTaken) {
  Admission admission(10, 100);
  const TimePoint drains{std::chrono::seconds(5)}, last = drains + Admission::kOnItsWay;
  admission.Drain(drains);
  admission.Drain(last);
  EXPECT_TRUE(Ok(admission.Enter(drains, last))) << "the first order to drain counts";
  EXPECT_FALSE(Ok(admission.Enter(drains, last + Duration(1)))) << "it had time to hear";
  EXPECT_FALSE(Ok(admission.Enter(drains + Duration(1), last))) << "a client that came later";
  EXPECT_FALSE(Ok(admission.Enter(TimePoint::max(), drains))) << "a connection that has ended";
}

TEST(Admission, PredictedWaitFollowsFinishedRequests) {
  Admission admission(10, 100);
  EXPECT_EQ(admission.PredictedWaitMs(), 0);
  auto a = admission.Enter({}, {}), b = admission.Enter({}, {});
  admission.Finished(std::chrono::milliseconds(800));
  EXPECT_EQ(admission.PredictedWaitMs(), 400) << "two of them run: one ends every 400 ms";
  admission.Finished(std::chrono::milliseconds(1600));
  EXPECT_EQ(admission.PredictedWaitMs(), 440) << "the newest request is a tenth of the mean: 880 ms";
  std::vector<std::variant<AdmissionHold, ApiError>> others;
  while (admission.running() < 10) others.push_back(admission.Enter({}, {}));
  EXPECT_EQ(std::get<ApiError>(admission.Enter({}, {})).overload->predicted_wait_ms, 88)
      << "who is refused hears of it";
}

// A key by its number; the accounts outlive what is asked of them.
KeyAccount* Key(size_t number) {
  static std::deque<KeyAccount> accounts;
  while (accounts.size() <= number) accounts.emplace_back(StrCat("key-", accounts.size()), KeyAccount::Limits{});
  return &accounts[number];
}

// Places of a key, as many as it gets.
std::vector<AdmissionHold> Fill(Admission& admission, KeyOwner owner, TimePoint now = {}) {
  std::vector<AdmissionHold> held;
  while (true) {
    auto one = admission.Enter({}, now, owner);
    if (!Ok(one)) return held;
    held.push_back(std::move(std::get<AdmissionHold>(one)));
  }
}

TEST(Admission, EachOfSeveralKeysLeavesAnEighthOfWhatItFindsToOthers) {
  Admission admission(1024, 1 << 20, /*several_keys=*/true);
  std::vector<std::vector<AdmissionHold>> held;
  std::vector<size_t> places;
  for (size_t key = 0; key < 5; ++key) places.push_back(held.emplace_back(Fill(admission, Key(key))).size());
  EXPECT_EQ(places, (std::vector<size_t>{896, 112, 14, 1, 1})) << "whoever holds nothing may have the last one";
  const auto refused = admission.Enter({}, {}, Key(0));
  EXPECT_NE(std::get<ApiError>(refused).message.find("1024 requests"), std::string::npos);
  held.clear();
  for (int i = 0; i < 1024; ++i) {
    for (size_t key = 0; key < 2; ++key) {
      auto one = admission.Enter({}, {}, Key(key));
      if (Ok(one)) held.emplace_back().push_back(std::move(std::get<AdmissionHold>(one)));
    }
  }
  EXPECT_EQ(held.size(), 955u) << "two that ask in turn have 478 and 477";
}

TEST(Admission, WhereThereIsOneKeyItMayHaveAllPlaces) {
  Admission admission(64, 1000);
  EXPECT_EQ(Fill(admission, Key(0)).size(), 64u);
}

TEST(Admission, AKeyThatIsRefusedForOthersIsToldSoAndItIsCounted) {
  Admission admission(16, 1000, /*several_keys=*/true);
  KeyAccount greedy("greedy", {}), other("other", {});
  const auto most = Fill(admission, &greedy);
  EXPECT_EQ(greedy.use().refused_for_share, 1);
  const auto refused = admission.Enter({}, {}, &greedy);
  EXPECT_NE(std::get<ApiError>(refused).message.find("free beside the 14 of this API key is for others"),
            std::string::npos);
  EXPECT_EQ(greedy.use().refused_for_share, 2);
  const auto rest = Fill(admission, &other);
  const auto last = Fill(admission, Key(1));
  ASSERT_EQ(rest.size() + last.size(), 2u);
  const auto full = admission.Enter({}, {}, &greedy);
  EXPECT_EQ(std::get<ApiError>(full).message.find("is for others"), std::string::npos) << "there is nothing to leave";
  EXPECT_EQ(greedy.use().refused_for_share, 2);
}

TEST(KeyShares, WhereSeveralKeysWantAllTheyGetEachHasAsMuch) {
  KeyShares shares(1000, /*several=*/true);
  EXPECT_EQ(shares.ShareOf(Key(0)), 875) << "7/8: it leaves an eighth";
  shares.Take(Key(0), 10);
  EXPECT_EQ(shares.ShareOf(Key(0)), 875);
  EXPECT_EQ(shares.ShareOf(Key(1)), 466) << "7/15";
  shares.Take(Key(1), 10);
  EXPECT_EQ(shares.ShareOf(Key(1)), 466);
  EXPECT_EQ(shares.ShareOf(Key(2)), 318) << "7/22";
  shares.Return(Key(0), 10);
  EXPECT_EQ(shares.ShareOf(Key(2)), 466) << "one has gone";
  EXPECT_EQ(KeyShares(1, true).ShareOf(Key(0)), 1);
  EXPECT_EQ(KeyShares(1000, false).ShareOf(Key(0)), 1000);
}

TEST(Admission, OfPromptTokensAKeyLeavesSomeToOthersToo) {
  Admission admission(10, 800, /*several_keys=*/true);
  const auto alone = admission.EnterTokens(790, {}, Key(0));
  ASSERT_TRUE(Ok(alone)) << "whoever holds nothing may have what is free";
  const auto more = admission.EnterTokens(5, {}, Key(0));
  ASSERT_FALSE(Ok(more));
  EXPECT_EQ(std::get<ApiError>(more).overload->flag, "--max-running-tokens");
  EXPECT_NE(std::get<ApiError>(more).message.find("790 of this API key"), std::string::npos);
  EXPECT_EQ(Key(0)->use().refused_for_share > 0, true);
  EXPECT_TRUE(Ok(admission.EnterTokens(10, {}, Key(1))));
}

TEST(Admission, WhatDoesNotFitAtAllWasNotLeftToOthers) {
  Admission admission(2, 100, /*several_keys=*/true);
  KeyAccount one("one", {}), two("two", {});
  const auto held = admission.EnterTokens(90, {}, &one);
  EXPECT_FALSE(Ok(admission.EnterTokens(11, {}, &one)));
  EXPECT_FALSE(Ok(admission.EnterTokens(11, {}, &two)));
  const auto first = admission.Enter({}, {}, &one), second = admission.Enter({}, {}, &two);
  EXPECT_FALSE(Ok(admission.Enter({}, {}, &two)));
  EXPECT_EQ(one.use().refused_for_share + two.use().refused_for_share, 0);
  EXPECT_FALSE(Ok(admission.EnterTokens(10, {}, &one)));
  EXPECT_EQ(one.use().refused_for_share, 1) << "it would fit";
}

// Answers of a key that have stood still since 0, as many as it gets places; which of them were told to give way.
class Unread {
 public:
  Unread(Admission& admission, KeyOwner owner) : places_(Fill(admission, owner)) {
    for (size_t i = 0; i < places_.size(); ++i)
      still_.push_back(admission.StandsStill(owner, {}, [this, i] { told.push_back(i); }));
  }
  size_t size() const { return places_.size(); }
  void End(size_t i) {
    still_[i] = {};
    places_[i] = AdmissionHold();
  }

  std::vector<size_t> told;

 private:
  std::vector<AdmissionHold> places_;
  std::vector<StillHold> still_;
};

TEST(Admission, AnAnswerThatStandsStillGivesWayToAKeyBelowItsShare) {
  Admission admission(16, 1000, /*several_keys=*/true);
  const TimePoint soon{Admission::kStill - Duration(1)}, later{Admission::kStill};
  Unread greedy(admission, Key(0));
  ASSERT_EQ(greedy.size(), 14u);
  std::vector<AdmissionHold> other = Fill(admission, Key(1), soon);
  EXPECT_EQ(other.size(), 1u);
  EXPECT_TRUE(greedy.told.empty()) << "a client may stand still for a while";
  while (other.size() < 7) {
    auto one = admission.Enter({}, later, Key(1));
    ASSERT_EQ(greedy.told.size(), other.size()) << "one for each";
    EXPECT_EQ(greedy.told.back(), other.size() - 1) << "the one that has stood still for longest";
    greedy.End(greedy.told.back());
    ASSERT_TRUE(Ok(one));
    other.push_back(std::move(std::get<AdmissionHold>(one)));
  }
  EXPECT_FALSE(Ok(admission.Enter({}, later, Key(1)))) << "it has its share";
  EXPECT_EQ(greedy.told.size(), 6u);
}

TEST(Admission, OfSeveralKeysBeyondTheirSharesTheOneWithMostGivesWay) {
  Admission admission(64, 1000, /*several_keys=*/true);
  Unread most(admission, Key(0)), some(admission, Key(1));
  ASSERT_EQ(std::pair(most.size(), some.size()), std::pair(size_t{56}, size_t{7}));
  auto last = admission.Enter({}, {}, Key(2));
  ASSERT_TRUE(Ok(last));
  EXPECT_FALSE(Ok(admission.Enter({}, TimePoint{Admission::kStill}, Key(1)))) << "there is none until one has ended";
  EXPECT_EQ(most.told.size(), 1u);
  EXPECT_TRUE(some.told.empty());
  most.End(0);
  EXPECT_TRUE(Ok(admission.Enter({}, TimePoint{Admission::kStill}, Key(2))));
}

TEST(Admission, OneAnswerOfAKeyGivesWayAtATimeForItMayHoldManyPlaces) {
  Admission admission(16, 1000, /*several_keys=*/true);
  Unread greedy(admission, Key(0));
  std::vector<AdmissionHold> other = Fill(admission, Key(1), TimePoint{Admission::kStill});
  EXPECT_EQ(other.size(), 2u) << "both that were free";
  EXPECT_EQ(greedy.told, std::vector<size_t>{0});
  for (size_t i = 0; i < 4; ++i) greedy.End(i);
  for (auto& one : Fill(admission, Key(1), TimePoint{Admission::kStill})) other.push_back(std::move(one));
  EXPECT_EQ(other.size(), 6u);
  EXPECT_EQ(greedy.told.size(), 2u);
}

TEST(Admission, ForAKeyOthersGiveWayUntilItHasWhatEachOfThemMayHaveAtOnce) {
  Admission admission(17, 1000, /*several_keys=*/true);
  Unread greedy(admission, Key(0));
  std::vector<AdmissionHold> other;
  size_t ended = 0;
  for (auto more = Fill(admission, Key(1), TimePoint{Admission::kStill}); !more.empty();
       more = Fill(admission, Key(1), TimePoint{Admission::kStill})) {
    std::ranges::move(more, std::back_inserter(other));
    greedy.End(ended++);
  }
  EXPECT_EQ(other.size(), 7u) << "two keys that want all have 7/15 of 17 each";
}

TEST(Admission, WhoGoesOnReadingIsNotTold) {
  Admission admission(8, 1000, /*several_keys=*/true);
  std::vector<AdmissionHold> greedy = Fill(admission, Key(0));
  {
    const StillHold read_again = admission.StandsStill(Key(0), {}, [] { FAIL(); });
  }
  const auto first = admission.Enter({}, {}, Key(1));
  ASSERT_TRUE(Ok(first));
  EXPECT_FALSE(Ok(admission.Enter({}, TimePoint{Admission::kStill}, Key(1))));
}

TEST(TextPool, ItsQueueIsBounded) {
  std::mutex gate;
  std::atomic<int> ran{0};
  std::atomic<bool> started{false};
  TextPool pool(1, 2);
  std::unique_lock closed(gate);
  ASSERT_TRUE(pool.TryRun("", [&] {
    started = true;
    std::lock_guard wait(gate);
    ++ran;
  }));
  ASSERT_TRUE(Soon([&] { return started.load(); }));
  EXPECT_TRUE(pool.TryRun("", [&] { ++ran; }));
  EXPECT_TRUE(pool.TryRun("", [&] { ++ran; }));
  EXPECT_FALSE(pool.TryRun("", [&] { ++ran; })) << "two wait already";
  EXPECT_EQ(pool.queued(), 2u);
  closed.unlock();
  ASSERT_TRUE(Soon([&] { return ran == 3; }));
  pool.Stop();
  EXPECT_FALSE(pool.TryRun("", [&] { ++ran; }));
  EXPECT_EQ(ran, 3);
}

TEST(TextPool, OwnersTakeTurnsAndNobodyHasMoreThanHalfOfTheQueue) {
  std::mutex gate;
  std::atomic<bool> started{false};
  std::string order;  // written by the pool's only thread
  TextPool pool(1, 8);
  std::unique_lock closed(gate);
  ASSERT_TRUE(pool.TryRun("", [&] {
    started = true;
    std::lock_guard wait(gate);
  }));
  ASSERT_TRUE(Soon([&] { return started.load(); }));
  const auto send = [&](const std::string& owner) { return pool.TryRun(owner, [&order, owner] { order += owner; }); };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(send("A"));
  EXPECT_FALSE(send("A")) << "half of 8 wait";
  EXPECT_TRUE(send("b")) << "another's texts are no reason";
  EXPECT_TRUE(send("b"));
  EXPECT_TRUE(send("c"));
  EXPECT_TRUE(send("d"));
  EXPECT_FALSE(send("e")) << "8 wait in all";
  EXPECT_EQ(pool.queued(), 8u);
  closed.unlock();
  ASSERT_TRUE(Soon([&] { return pool.queued() == 0; }));
  std::atomic<bool> over{false};
  ASSERT_TRUE(pool.TryRun("A", [&] { over = true; }));
  ASSERT_TRUE(Soon([&] { return over.load(); }));
  EXPECT_EQ(order, "AbcdAbAA");
}

TEST(TextPool, ATinyQueueHasRoomForEachOwnerThatComesFirst) {
  std::mutex gate;
  std::atomic<bool> started{false};
  TextPool pool(1, 1);
  std::unique_lock closed(gate);
  ASSERT_TRUE(pool.TryRun("A", [&] {
    started = true;
    std::lock_guard wait(gate);
  }));
  ASSERT_TRUE(Soon([&] { return started.load(); }));
  EXPECT_TRUE(pool.TryRun("A", [] {}));
  EXPECT_FALSE(pool.TryRun("b", [] {}));
}

TEST(RequestIds, KeepsWhatIsPrintableAndMakesTheRest) {
  RequestIds ids;
  EXPECT_EQ(ids.GivenOrNew("abc-1"), "abc-1");
  const std::string longest(128, 'x');
  EXPECT_EQ(ids.GivenOrNew(longest), longest);
  for (const std::string& bad : {std::string(), std::string(129, 'x'), std::string("a b"),
                                 std::string("a\r\nSet-Cookie: x"), std::string("é")}) {
    const std::string made = ids.GivenOrNew(bad);
    EXPECT_EQ(made.size(), 32u);
    EXPECT_EQ(made.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
  EXPECT_NE(ids.OnceOnly("a"), ids.OnceOnly("a"));
}

// Ids were a counter through a bijection, and an answer's id gave the next one away.
TEST(RequestIds, TheDistanceOfTwoIdsSaysNothingOfTheThird) {
  RequestIds ids;
  const auto low = [](const std::string& id) { return std::stoull(id.substr(16), nullptr, 16); };
  const auto high = [](const std::string& id) { return std::stoull(id.substr(0, 16), nullptr, 16); };
  const std::string a = ids.GivenOrNew(""), b = ids.GivenOrNew(""), c = ids.GivenOrNew("");
  EXPECT_NE(low(b) - low(a), low(c) - low(b));
  EXPECT_NE(high(b) - high(a), high(c) - high(b));
  EXPECT_NE(high(a) ^ (low(a) >> 7), high(b) ^ (low(b) >> 7));
  const auto suffix = [&ids] { return std::stoull(ids.OnceOnly("a").substr(2), nullptr, 16); };
  const uint64_t first = suffix(), second = suffix(), third = suffix();
  EXPECT_NE(second - first, third - second);
}

}  // namespace
}  // namespace baton::router
