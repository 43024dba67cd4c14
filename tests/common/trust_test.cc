// The greeting of two processes of one cluster, whole, in pieces, damaged, replayed and reflected.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/str_cat.h"
#include "common/trust/greeting.h"
#include "common/trust/hash_key.h"
#include "tests/state_table.h"

namespace baton::trust {
namespace {

using ::testing::HasSubstr;
using Role = Greeting::Role;
using State = Greeting::State;

constexpr char kText[] = "0123456789abcdef0123456789abcdef";

std::shared_ptr<const ClusterSecret> Secret(const std::string& text = kText) { return ClusterSecret::Of(text).value(); }
Nonce Filled(uint8_t byte) {
  Nonce nonce;
  nonce.fill(byte);
  return nonce;
}
Greeting Caller(const std::string& text = kText, Purpose purpose = Purpose::kLanding, uint8_t nonce = 1) {
  return {Secret(text), Role::kCaller, purpose, Filled(nonce)};
}
Greeting Callee(const std::string& text = kText, Purpose purpose = Purpose::kLanding, uint8_t nonce = 2) {
  return {Secret(text), Role::kCallee, purpose, Filled(nonce)};
}

/// What a whole greeting says, message by message: call, answer, proof.
std::array<std::string, 3> Transcript() {
  std::array<std::string, 3> said;
  Greeting caller = Caller(), callee = Callee();
  caller.Begin(said[0]);
  std::string none;
  callee.Begin(none);
  std::string_view in = said[0];
  EXPECT_TRUE(callee.Take(in, said[1]).ok());
  in = said[1];
  EXPECT_TRUE(caller.Take(in, said[2]).ok());
  in = said[2];
  EXPECT_TRUE(callee.Take(in, none).ok());
  EXPECT_TRUE(caller.done() && callee.done());
  EXPECT_EQ(none, "");
  return said;
}

/// Takes all of `bytes`; what came of it.
absl::Status Feed(Greeting& greeting, std::string_view bytes) {
  std::string out;
  return greeting.Take(bytes, out);
}

TEST(Greeting, BothEndsKnowEachOther) {
  const auto said = Transcript();
  EXPECT_EQ(said[0].size(), kCallBytes);
  EXPECT_EQ(said[1].size(), kAnswerBytes);
  EXPECT_EQ(said[2].size(), kProofBytes);
  EXPECT_LE(said[0].size() + said[2].size(), kMostGreetingBytes);
}

// The bytes of version 1, made by another program (Python's hmac) from the description in greeting.h.
TEST(Greeting, BytesAreThoseOfVersionOne) {
  const auto said = Transcript();
  EXPECT_EQ(said[0], std::string("BATONHI\n\x01\x01") + std::string(32, '\x01'));
  EXPECT_EQ(said[1].substr(0, 41), std::string("BATONHI\n\x01") + std::string(32, '\x02'));
  EXPECT_EQ(absl::BytesToHexString(said[1].substr(41)),
            "0a66fb4aaeae47e63b1d3a8e75677972036a98729ead664f331b247c30f97d11");
  EXPECT_EQ(absl::BytesToHexString(said[2]), "9882d78120f3e6162a05f61ed7927f8e4146452479eb527cdd9125ea5554c3ca");
}

TEST(Greeting, PiecesOfAnySizeAreTakenAndTheRestIsLeft) {
  for (size_t piece = 1; piece <= 50; ++piece) {
    Greeting caller = Caller(), callee = Callee();
    std::string to_callee, to_caller;
    caller.Begin(to_callee), callee.Begin(to_caller);
    const auto feed = [piece](Greeting& to, std::string& bytes, std::string& out) {
      while (!bytes.empty() && !to.done()) {
        std::string_view in = std::string_view(bytes).substr(0, piece);
        const size_t given = in.size();
        ASSERT_TRUE(to.Take(in, out).ok());
        bytes.erase(0, given - in.size());
      }
    };
    feed(callee, to_callee, to_caller);
    to_caller += "behind";
    feed(caller, to_caller, to_callee);
    EXPECT_EQ(to_caller, "behind") << "what follows the greeting is not the greeting's";
    to_callee += "first frame";
    feed(callee, to_callee, to_caller);
    EXPECT_EQ(to_callee, "first frame");
    EXPECT_TRUE(caller.done() && callee.done()) << piece;
  }
}

TEST(Greeting, AnotherSecretIsRefusedByWhoeverHearsTheProofFirst) {
  const std::string other(32, 'x');
  std::string call, answer, none;
  Greeting caller = Caller(), callee = Callee(other);
  caller.Begin(call), callee.Begin(none);
  std::string_view in = call;
  ASSERT_TRUE(callee.Take(in, answer).ok());
  in = answer;
  const absl::Status refused = caller.Take(in, none);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(none, "") << "no proof for one who has shown none";
  EXPECT_TRUE(absl::IsPermissionDenied(Feed(callee, std::string(kProofBytes, 'p'))));
}

TEST(Greeting, EveryChangedBitIsNoticedByAnEnd) {
  const auto said = Transcript();
  for (size_t message = 0; message < said.size(); ++message) {
    for (size_t bit = 0; bit < 8 * said[message].size(); ++bit) {
      std::array<std::string, 3> now;
      Greeting caller = Caller(), callee = Callee();
      std::string none;
      caller.Begin(now[0]), callee.Begin(none);
      bool ok = true;
      const auto pass = [&](size_t number, Greeting& to, std::string& out) {
        if (number == message) now[number][bit / 8] = static_cast<char>(now[number][bit / 8] ^ (1 << (bit % 8)));
        std::string_view in = now[number];
        ok = ok && to.Take(in, out).ok();
      };
      pass(0, callee, now[1]);
      if (ok) pass(1, caller, now[2]);
      if (ok) pass(2, callee, none);
      EXPECT_FALSE(ok) << "bit " << bit << " of message " << message;
    }
  }
}

// Nothing that was heard serves another time, and nobody's own words serve against him.
TEST(Greeting, ReplayAndReflectionAreRefused) {
  const auto said = Transcript();
  Greeting next = Callee(kText, Purpose::kLanding, 3);
  std::string answer, none;
  next.Begin(none);
  std::string_view in = said[0];
  ASSERT_TRUE(next.Take(in, answer).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Feed(next, said[2]))) << "an old proof";
  Greeting caller = Caller(kText, Purpose::kLanding, 3);
  caller.Begin(none);
  EXPECT_TRUE(absl::IsPermissionDenied(Feed(caller, said[1]))) << "an old answer";
  Greeting callee = Callee();
  callee.Begin(none), answer.clear();
  in = said[0];
  ASSERT_TRUE(callee.Take(in, answer).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Feed(callee, answer.substr(41)))) << "its own proof";
}

TEST(Greeting, AnotherPortsGreetingIsRefused) {
  std::string call, none;
  Greeting caller = Caller(kText, Purpose::kRanks), callee = Callee();
  caller.Begin(call), callee.Begin(none);
  EXPECT_THAT(Feed(callee, call).ToString(), HasSubstr("for a port of kind 2, this one is of kind 1"));
  call[8] = 9;
  Greeting again = Callee();
  again.Begin(none);
  EXPECT_THAT(Feed(again, call).ToString(), HasSubstr("version 9, here 1"));
}

TEST(Greeting, WhoDoesNotGreetIsToldAtTheFirstByte) {
  Greeting callee = Callee();
  std::string none;
  callee.Begin(none);
  EXPECT_THAT(Feed(callee, "G").ToString(), HasSubstr("started without --cluster-secret-file"));
  Greeting caller = Caller();
  caller.Begin(none);
  EXPECT_THAT(Feed(caller, "BATN").ToString(), HasSubstr("started without --cluster-secret-file"));
}

// ---- every event in every state

const std::vector<std::string> kStates = {"caller waits", "callee waits", "callee answered", "done", "failed"};

Greeting In(const std::string& state) {
  const auto said = Transcript();
  std::string out;
  Greeting greeting = state.starts_with("callee") ? Callee() : Caller();
  greeting.Begin(out);
  absl::Status taken;
  if (state == "callee answered") taken = Feed(greeting, said[0]);
  if (state == "done") taken = Feed(greeting, said[1]);
  if (state == "failed") taken = Feed(greeting, std::string(kAnswerBytes, 'x'));
  EXPECT_EQ(taken.ok(), state != "failed") << taken;
  return greeting;
}

constexpr char kTable[] = R"(
a call       | =      | answers    | refuses    | leaves it | leaves it
an answer    | proves | refuses    | refuses    | leaves it | leaves it
a proof      | refuses | refuses   | →done      | leaves it | leaves it
nothing      | =      | =          | =          | =         | =
other bytes  | refuses | refuses      | =          | leaves it | leaves it
)";

TEST(GreetingTable, EveryEventInEveryStateDoesWhatItsCellSays) {
  const auto said = Transcript();
  const std::vector<std::pair<std::string, std::string>> events = {
      {"a call", said[0]}, {"an answer", said[1]}, {"a proof", said[2]}, {"nothing", ""}, {"other bytes", "GET /"}};
  ExpectEveryCell(kTable, kStates, events, [](const std::string&, const std::string& state, const std::string& bytes) {
    Greeting greeting = In(state);
    const State before = greeting.state();
    std::string out;
    std::string_view in = bytes;
    const absl::Status taken = greeting.Take(in, out);
    if (!taken.ok()) return std::string("refuses");
    if (!out.empty()) return std::string(greeting.done() ? "proves" : "answers");
    if (greeting.state() != before) return std::string("→done");
    return std::string(in.empty() ? "=" : "leaves it");
  });
}

// ---- the file

TEST(ClusterSecret, AFileIsReadWhenItIsPrivateAndLongEnough) {
  const std::string file = testing::TempDir() + "/cluster_secret_test";
  const auto with = [&](const std::string& text, mode_t mode) {
    std::ofstream(file) << text;
    chmod(file.c_str(), mode);
    return ClusterSecret::Read(file);
  };
  const std::string text = ClusterSecret::NewText();
  EXPECT_EQ(text.size(), 64u);
  EXPECT_NE(text, ClusterSecret::NewText());
  const auto read = with(text + "\n", 0640);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->Prove("a", {"b"}), Secret(text)->Prove("a", {"b"}));
  EXPECT_TRUE(absl::IsFailedPrecondition(with(text, 0644).status()));
  EXPECT_THAT(with("short\n", 0600).status().ToString(), HasSubstr("5 bytes, it must have 32 to 4096"));
  EXPECT_THAT(with(std::string(5000, 'x'), 0600).status().ToString(), HasSubstr("bytes, it must have 32 to 4096"));
  EXPECT_TRUE(absl::IsNotFound(ClusterSecret::Read(file + ".none").status()));
  EXPECT_FALSE(ClusterSecret::Read(testing::TempDir()).ok());
}

TEST(ClusterSecret, AProofIsOfItsLabelAndPartsAsTheyWereCut) {
  const auto secret = Secret();
  const Proof proof = secret->Prove("a", {"bc", "d"});
  EXPECT_TRUE(Same(proof, secret->Prove("a", {"bc", "d"})));
  EXPECT_FALSE(Same(proof, secret->Prove("a", {"b", "cd"})));
  EXPECT_FALSE(Same(proof, secret->Prove("ab", {"c", "d"})));
  EXPECT_FALSE(Same(proof, secret->Prove("a", {"bcd"})));
  EXPECT_FALSE(Same(proof, Secret(std::string(32, 'x'))->Prove("a", {"bc", "d"})));
}

// Other bytes: a router and a worker of two versions have no key in common. They are HMAC-SHA256 of the label behind
// its length in eight bytes, the least first.
TEST(ClusterSecret, TheHashKeyOfASecretIsAlwaysTheSame) {
  EXPECT_EQ(HashKeyOf(*Secret()).Hex(), "b3ef0bb9d1a6a0ccd074b6bba504894b853606d054fe3de5c636efc6d5d3cecc");
  EXPECT_EQ(HashKeyOf(*Secret(std::string(kText) + "\n")), HashKeyOf(*Secret()));
  EXPECT_NE(HashKeyOf(*Secret(std::string(32, 'x'))), HashKeyOf(*Secret()));
}

}  // namespace
}  // namespace baton::trust
