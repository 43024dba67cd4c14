// Who may call a worker that has a cluster secret: every word and token in every state of a greeting.
#include "worker/process/router_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/state_table.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] = "0123456789abcdef0123456789abcdef";

std::shared_ptr<const trust::ClusterSecret> SecretOf(const std::string& text = kText) {
  return trust::ClusterSecret::Of(text).value();
}

/// The token of a session that begins now.
std::string NewSession(RouterSessions& sessions, const std::string& name = {}) {
  trust::Greeting router(SecretOf(), trust::Greeting::Role::kCaller, trust::Purpose::kRpc, trust::NewNonce());
  std::string call, proof;
  router.Begin(call);
  const std::string answer = sessions.Greet(call, "a").value();
  std::string_view in = answer;
  EXPECT_TRUE(router.Take(in, proof).ok());
  const std::string nonce(reinterpret_cast<const char*>(router.other_nonce().data()), sizeof(trust::Nonce));
  EXPECT_EQ(sessions.Greet(nonce + proof, "a", name).value_or("refused"), "");
  return router.SessionToken();
}

/// A worker's sessions and a router that greets.
struct SessionWorld {
  explicit SessionWorld(const std::string& routers_secret = kText)
      : router(SecretOf(routers_secret), trust::Greeting::Role::kCaller, trust::Purpose::kRpc, trust::NewNonce()) {
    router.Begin(call);
  }
  /// Says the call; then `proof` is what the router would say next.
  absl::Status Call() {
    const auto answer = sessions.Greet(call, "10.0.0.7");
    if (!answer.ok()) return answer.status();
    std::string_view in = *answer;
    std::string out;
    const absl::Status taken = router.Take(in, out);
    proof = std::string(reinterpret_cast<const char*>(router.other_nonce().data()), sizeof(trust::Nonce)) + out;
    return taken;
  }
  FakeClock clock;
  RouterSessions sessions{SecretOf(), clock};
  trust::Greeting router;
  std::string call, proof;
};

constexpr std::array kSessionStates = {"nothing", "called", "proved", "called long ago"};

void EnterSession(SessionWorld& w, const std::string& state) {
  if (state == "nothing") return;
  ASSERT_TRUE(w.Call().ok());
  if (state == "proved") w.sessions.Greet(w.proof, "10.0.0.7").status().IgnoreError();
  if (state != "called long ago") return;
  w.clock.Advance(RouterSessions::kGreetingTime);
  w.sessions.Tick();
}

std::string Said(const absl::StatusOr<std::string>& answer) {
  return !answer.ok() ? "refuses" : answer->empty() ? "lets in" : "answers";
}

constexpr char kSessionTable[] = R"(
no greeting     | refuses | refuses | refuses | refuses
a call          | answers | answers | answers | answers
half a call     | refuses | refuses | refuses | refuses
its proof       | refuses | lets in | refuses | refuses
a wrong proof   | refuses | refuses | refuses | refuses
its token       | refuses | refuses | =       | refuses
another token   | refuses | refuses | refuses | refuses
no token        | refuses | refuses | refuses | refuses
)";

TEST(RouterSessionsTable, EveryWordInEveryState) {
  using Say = std::function<std::string(SessionWorld&)>;
  const auto greet = [](SessionWorld& w, const std::string& words) {
    return Said(w.sessions.Greet(words, "10.0.0.7"));
  };
  const auto token = [](SessionWorld& w, const std::string& text) {
    return w.sessions.Check(text, "10.0.0.7").ok() ? "=" : "refuses";
  };
  const std::vector<std::pair<std::string, Say>> events = {
      {"no greeting", [&](SessionWorld& w) { return greet(w, ""); }},
      {"a call", [&](SessionWorld& w) { return greet(w, SessionWorld().call); }},
      {"half a call", [&](SessionWorld& w) { return greet(w, w.call.substr(0, 20)); }},
      {"its proof", [&](SessionWorld& w) { return greet(w, w.proof.empty() ? std::string(64, 'p') : w.proof); }},
      {"a wrong proof",
       [&](SessionWorld& w) {
         std::string wrong = w.proof.empty() ? std::string(64, 'p') : w.proof;
         wrong.back() = static_cast<char>(wrong.back() ^ 1);
         return greet(w, wrong);
       }},
      {"its token",
       [&](SessionWorld& w) { return token(w, w.router.done() ? w.router.SessionToken() : std::string(32, '0')); }},
      {"another token", [&](SessionWorld& w) { return token(w, std::string(32, '0')); }},
      {"no token", [&](SessionWorld& w) { return token(w, ""); }},
  };
  ExpectEveryCell(kSessionTable, kSessionStates, events, [&](const auto&, const std::string& state, const Say& say) {
    SessionWorld w;
    EnterSession(w, state);
    const int64_t before = w.sessions.refused();
    const std::string said = say(w);
    EXPECT_EQ(w.sessions.refused() - before, said == "refuses") << "each is counted once";
    return said;
  });
}

TEST(RouterSessions, AnotherSecretIsNoticedByTheRouterAndCountedHere) {
  SessionWorld w(std::string(32, 'x'));
  EXPECT_THAT(w.Call().ToString(), HasSubstr("the peer has another cluster secret"));
  EXPECT_EQ(w.sessions.refused(), 0);
  w.clock.Advance(RouterSessions::kGreetingTime);
  w.sessions.Tick();
  EXPECT_EQ(w.sessions.refused(), 1);
}

TEST(RouterSessions, AFloodOfCallsIsBoundedAndRoutersGetThrough) {
  SessionWorld w;
  EnterSession(w, "proved");
  const std::string call = SessionWorld().call;
  for (size_t i = 0; i < 2 * RouterSessions::kMostGreetings; ++i) EXPECT_TRUE(w.sessions.Greet(call, "a").ok());
  EXPECT_EQ(w.sessions.refused(), RouterSessions::kMostGreetings);
  EXPECT_TRUE(w.sessions.Check(w.router.SessionToken(), "10.0.0.7").ok());
  EXPECT_TRUE(w.sessions.Check(NewSession(w.sessions), "10.0.0.7").ok());
}

TEST(RouterSessions, TheSessionThatWasUsedLeastRecentlyEndsFirst) {
  const FakeClock clock;
  RouterSessions sessions(SecretOf(), clock);
  const std::string first = NewSession(sessions), second = NewSession(sessions);
  for (size_t i = 2; i < RouterSessions::kMostSessions; ++i) NewSession(sessions);
  EXPECT_TRUE(sessions.Check(first, "a").ok());
  const std::string last = NewSession(sessions);
  EXPECT_TRUE(sessions.Check(first, "a").ok());
  EXPECT_TRUE(sessions.Check(last, "a").ok());
  EXPECT_TRUE(absl::IsUnauthenticated(sessions.Check(second, "a").status()));
}

TEST(RouterSessions, ARouterThatGreetsWithoutEndEndsItsOwnSessions) {
  const FakeClock clock;
  RouterSessions sessions(SecretOf(), clock);
  const std::string quiet = NewSession(sessions, "quiet"), nameless = NewSession(sessions);
  std::string last;
  for (size_t i = 0; i < 2 * RouterSessions::kMostSessions; ++i) last = NewSession(sessions, "loud");
  for (const std::string& token : {quiet, nameless, last}) EXPECT_TRUE(sessions.Check(token, "a").ok());
}

TEST(RouterSessions, ASessionIsOfTheRouterThatGreetedOrItsOwn) {
  const FakeClock clock;
  RouterSessions sessions(SecretOf(), clock);
  const std::string first = NewSession(sessions, "router-a"), again = NewSession(sessions, "router-a");
  EXPECT_EQ(sessions.Check(first, "a").value(), "router-a");
  EXPECT_EQ(sessions.Check(again, "a").value(), "router-a");
  const std::string nameless = NewSession(sessions), other = NewSession(sessions);
  EXPECT_EQ(sessions.Check(nameless, "a").value(), nameless);
  EXPECT_NE(sessions.Check(nameless, "a").value(), sessions.Check(other, "a").value());
}

TEST(RouterSessions, WithoutASecretEverybodyMayCall) {
  const FakeClock clock;
  RouterSessions sessions(nullptr, clock);
  EXPECT_EQ(Said(sessions.Greet("", "a")), "lets in");
  EXPECT_TRUE(sessions.Check("", "a").ok());
}

}  // namespace
}  // namespace baton::worker
