#include "router/admission/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>

#include "common/str_cat.h"

namespace baton::router {
namespace {

std::string FileWith(const std::string& text) {
  const std::string path = testing::TempDir() + "/api_keys_test";
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeys, NoKeysIsOpen) {
  const auto keys = ApiKeys::Load({}, "");
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(keys->open());
  EXPECT_TRUE(keys->Allows(""));
}

TEST(ApiKeys, OnlyAWholeKeyOfTheRightSchemePasses) {
  const auto keys = ApiKeys::Load({"alpha", "beta"}, FileWith("# comment\n\ngamma \r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const char* good : {"Bearer alpha", "Bearer beta", "Bearer gamma", "bearer alpha"})
    EXPECT_TRUE(keys->Allows(good)) << good;
  for (const char* bad : {"", "alpha", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer  alpha",
                          "Basic alpha", "Bearer # comment", "Bearer ALPHA"}) {
    EXPECT_FALSE(keys->Allows(bad)) << bad;
  }
}

TEST(ApiKeys, EachKeyHasACacheOfItsOwn) {
  const auto two = ApiKeys::Load({"alpha", "beta"}, ""), again = ApiKeys::Load({"beta", "gamma", "alpha"}, "");
  ASSERT_TRUE(two.ok() && again.ok());
  const std::string alpha = two->SaltOf("Bearer alpha", "");
  EXPECT_EQ(alpha.size(), 32u);
  EXPECT_EQ(alpha, two->SaltOf("bearer alpha", ""));
  EXPECT_EQ(alpha, again->SaltOf("Bearer alpha", "")) << "another router, of more keys";
  EXPECT_NE(alpha, two->SaltOf("Bearer beta", ""));
  EXPECT_NE(alpha, two->SaltOf("Bearer alpha", "mine"));
  EXPECT_NE(two->SaltOf("Bearer alpha", "mine"), two->SaltOf("Bearer beta", "mine"));
  for (const std::vector<std::string>& few : {std::vector<std::string>{}, {"alpha"}}) {
    const auto keys = ApiKeys::Load(few, "");
    EXPECT_EQ(keys->SaltOf("Bearer alpha", ""), "");
    EXPECT_EQ(keys->SaltOf("Bearer alpha", "mine"), "mine");
  }
}

TEST(ApiKeys, AKeyHasANameAndLimits) {
  const auto keys = ApiKeys::Load({"plain"}, FileWith("alpha name=alice requests-per-minute=60 tokens-per-minute=9000\n"
                                                      "two words\tname=bob  priority=-3\n"
                                                      "bGFzdA== \n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const KeyAccount* alice = keys->AccountOf("Bearer alpha");
  ASSERT_NE(alice, nullptr);
  EXPECT_EQ(alice->name(), "alice");
  EXPECT_EQ(alice->limits(), (KeyAccount::Limits{60, 9000, std::nullopt}));
  const KeyAccount* bob = keys->AccountOf("Bearer two words");
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(bob->limits(), (KeyAccount::Limits{0, 0, -3}));
  EXPECT_EQ(keys->AccountOf("Bearer plain")->name(), "key-1");
  EXPECT_EQ(keys->AccountOf("Bearer bGFzdA==")->name(), "key-4");
  EXPECT_EQ(keys->AccountOf("Bearer beta"), nullptr);
  EXPECT_EQ(keys->accounts().size(), 4u);
}

TEST(ApiKeys, AKeyAndItsSuccessorShareNameAccountAndCache) {
  const auto keys = ApiKeys::Load({"other"}, FileWith("old name=alice requests-per-minute=60\n"
                                                      "new name=alice requests-per-minute=60\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->AccountOf("Bearer old"), keys->AccountOf("Bearer new"));
  EXPECT_EQ(keys->SaltOf("Bearer old", "x"), keys->SaltOf("Bearer new", "x"));
  EXPECT_NE(keys->SaltOf("Bearer old", "x"), keys->SaltOf("Bearer other", "x"));
  const auto rotated = ApiKeys::Load({"other"}, FileWith("newer name=alice\n"));
  EXPECT_EQ(keys->SaltOf("Bearer old", "x"), rotated->SaltOf("Bearer newer", "x"));
  const auto alone = ApiKeys::Load({}, FileWith("old name=alice\nnew name=alice\n"));
  EXPECT_EQ(alone->SaltOf("Bearer old", "x"), "x") << "there is nobody else";
}

TEST(ApiKeys, AFieldThatIsNoneIsAnErrorWithItsLine) {
  for (const char* bad :
       {"k nmae=alice", "k name=", "k name=a/b", "k requests-per-minute=0", "k tokens-per-minute=-1", "k priority=high",
        "k name=a name=b", "k priority=1 priority=1", "k requests-per-minute=60 x=", "k requests-per-minute=1e9",
        "k name=a priority=1\nl name=a priority=2", "  name=a"}) {
    const auto keys = ApiKeys::Load({}, FileWith(std::string("# first\n") + bad));
    ASSERT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    const std::string message(keys.status().message());
    EXPECT_TRUE(message.find(":2: ") != message.npos || message.find(":3: ") != message.npos) << message;
  }
}

TEST(ApiKeys, AKeyThatComesAgainHasNoOtherNameOrLimits) {
  for (const char* bad : {"k name=a requests-per-minute=6\nk", "k name=a\nk name=b", "k\nk priority=1"}) {
    const auto keys = ApiKeys::Load({}, FileWith(bad));
    ASSERT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(keys.status().message().find(":2: a key that stands before"), std::string_view::npos) << keys.status();
  }
  EXPECT_FALSE(ApiKeys::Load({"k"}, FileWith("k requests-per-minute=6")).ok());
  const auto same = ApiKeys::Load({"k", "l"}, FileWith("k\nl\nm name=a\nm name=a"));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->accounts().size(), 3u);
}

TEST(ApiKeys, ManyOfThemAreReadAndFoundAsFewAre) {
  std::string lines;
  for (int i = 0; i < 50'000; ++i) absl::StrAppend(&lines, "k", i, " name=n", i / 2, "\n");
  const auto keys = ApiKeys::Load({}, FileWith(lines));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->accounts().size(), 25'000u);
  for (int i = 0; i < 50'000; ++i) ASSERT_EQ(keys->AccountOf(StrCat("Bearer k", i))->name(), StrCat("n", i / 2));
  EXPECT_FALSE(keys->Allows("Bearer k50000"));
}

TEST(ApiKeys, AByteOrderMarkIsNotOfTheFirstKey) {
  const auto keys = ApiKeys::Load({}, FileWith("\xEF\xBB\xBF"
                                               "k name=a\nl"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Allows("Bearer k"));
  EXPECT_TRUE(ApiKeys::Load({}, FileWith("\xEF\xBB\xBF# none\nk"))->Allows("Bearer k"));
}

TimePoint AtSecond(double seconds) {
  return TimePoint{} + std::chrono::hours(1) + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

TEST(KeyAccount, MoreAtOnceThanAMinuteHasRoomForIsNeverTaken) {
  KeyAccount account("alice", {.requests_per_minute = 30, .tokens_per_minute = 0, .priority = std::nullopt});
  EXPECT_FALSE(account.CheckEver(30));
  const auto refused = account.CheckEver(31);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->http_status, 400) << "who comes again is refused again";
  EXPECT_EQ(refused->retry_after_ms, 0);
  EXPECT_EQ(
      refused->message,
      "A list of 31 prompts is 31 requests, and the API key \"alice\" may use 30 requests per minute: send at most "
      "30 prompts at once.");
  EXPECT_FALSE(KeyAccount("bob", {}).CheckEver(1000000));
}

TEST(KeyAccount, AMinutesWorthMayComeAtOnceAndComesBackEvenly) {
  KeyAccount account("alice", {.requests_per_minute = 30, .tokens_per_minute = 0, .priority = std::nullopt});
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(account.TakeRequest(AtSecond(0)));
  const auto refused = account.TakeRequest(AtSecond(0.5));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->http_status, 429);
  EXPECT_EQ(refused->code, "rate_limit_exceeded");
  EXPECT_EQ(refused->grpc_code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused->retry_after_ms, 1500);
  EXPECT_EQ(refused->message, "The API key \"alice\" may use 30 requests per minute. There is room again in 1.5 s.");
  EXPECT_FALSE(account.TakeRequest(AtSecond(2)));
  EXPECT_TRUE(account.TakeRequest(AtSecond(2)));
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(account.TakeRequest(AtSecond(1000))) << i;
  EXPECT_TRUE(account.TakeRequest(AtSecond(1000))) << "no more than a minute's worth is kept";
  EXPECT_EQ(account.use().requests, 61);
  EXPECT_EQ(account.use().refused_for_requests, 3);
  EXPECT_FALSE(account.TakePrompt(1 << 30, AtSecond(1000))) << "of tokens there is no limit";
}

TEST(KeyAccount, AnswersCountAndALongPromptGoesWhenTheMinuteIsThere) {
  KeyAccount account("bob", {.requests_per_minute = 0, .tokens_per_minute = 600, .priority = std::nullopt});
  EXPECT_FALSE(account.TakePrompt(500, AtSecond(0)));
  EXPECT_EQ(account.TakePrompt(200, AtSecond(0))->retry_after_ms, 10000);
  account.TakeCompletion(400, AtSecond(0));  // 300 more than there was
  EXPECT_EQ(account.TakePrompt(1, AtSecond(0))->retry_after_ms, 30100);
  EXPECT_EQ(account.TakePrompt(5000, AtSecond(0))->retry_after_ms, 90000);
  EXPECT_FALSE(account.TakePrompt(5000, AtSecond(90)));
  EXPECT_EQ(account.TakePrompt(1, AtSecond(90))->retry_after_ms, 440100) << "all of it counts, not a minute's worth";
  EXPECT_EQ(account.use().prompt_tokens, 5500);
  EXPECT_EQ(account.use().completion_tokens, 400);
  EXPECT_EQ(account.use().refused_for_tokens, 4);
}

TEST(KeyAccount, AnAnswerAfterAQuietTimeTakesOfWhatThereIsAndNotOfTheTimeBefore) {
  KeyAccount account("bob", {.requests_per_minute = 0, .tokens_per_minute = 600, .priority = std::nullopt});
  EXPECT_FALSE(account.TakePrompt(100, AtSecond(0)));
  account.TakeCompletion(600, AtSecond(120));  // all that a minute has room for
  EXPECT_EQ(account.TakePrompt(100, AtSecond(120))->retry_after_ms, 10000);
}

TEST(KeyAccount, AnAnswerThatGaveWayIsCounted) {
  KeyAccount account("bob", {});
  account.EndedUnread();
  EXPECT_EQ(account.use().ended_unread, 1);
}

TEST(KeyAccount, NoRequestIsMoreUrgentThanItsKeyAllows) {
  const KeyAccount bound("a", {.requests_per_minute = 0, .tokens_per_minute = 0, .priority = 5}), free("b", {});
  EXPECT_EQ(bound.Priority(-100), 5);
  EXPECT_EQ(bound.Priority(0), 5);
  EXPECT_EQ(bound.Priority(7), 7);
  EXPECT_EQ(free.Priority(-100), -100);
}

TEST(ApiKeys, ABadListIsAnError) {
  EXPECT_EQ(ApiKeys::Load({""}, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ApiKeys::Load({}, "/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ApiKeys::Load({}, FileWith("# nothing\n")).status().code(), absl::StatusCode::kInvalidArgument)
      << "an empty file must not open the door";
}

}  // namespace
}  // namespace baton::router
