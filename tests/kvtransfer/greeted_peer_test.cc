// Transports with a cluster secret: who does not prove that he knows it hears nothing, costs nothing and harms nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "tests/kvtransfer/liar.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trust::ClusterSecret;

std::shared_ptr<const ClusterSecret> Secret(char letter = 's') {
  return ClusterSecret::Of(std::string(32, letter)).value();
}
TcpOptions With(std::shared_ptr<const ClusterSecret> secret, LandingShape landing = {1, 4096}) {
  return {.landing = landing, .trust = {.secret = std::move(secret)}};
}

/// A worker and who listens to it.
struct Worker {
  explicit Worker(TcpOptions options) : transport(TcpTransport::Create(std::move(options), side).value()) {}
  std::string why() const { return std::string(side.lost_why.message()); }
  Side side;
  std::unique_ptr<Transport> transport;
};

template <class Condition>
void UntilBoth(Worker& a, Worker& b, Condition&& condition) {
  Until(*a.transport, [&] { return b.transport->Progress(), condition(); });
}

/// A caller that knows the secret and says what it says through a Liar.
struct Knower {
  explicit Knower(const std::shared_ptr<const ClusterSecret>& secret)
      : greeting(secret, trust::Greeting::Role::kCaller, trust::Purpose::kLanding, trust::NewNonce()) {
    greeting.Begin(call);
  }
  /// The proof for this answer.
  std::string ProofFor(std::string_view answer) {
    std::string out;
    EXPECT_TRUE(greeting.Take(answer, out).ok());
    return out;
  }
  trust::Greeting greeting;
  std::string call;
};

/// What `liar` hears, of at least `bytes`.
std::string Hear(Worker& victim, Liar& liar, size_t bytes) {
  std::string heard;
  Until(*victim.transport, [&] { return heard += liar.Hear(), heard.size() >= bytes; });
  return heard;
}

template <class TransportOfKind>
void ExpectMessagesAndWrites() {
  Side at_decode, at_prefill;
  auto decode = TransportOfKind::Create(With(Secret()), at_decode).value();
  auto prefill = TransportOfKind::Create(With(Secret(), {}), at_prefill).value();
  const PeerNumber peer = prefill->Connect(decode->address()).value();
  const std::string text(4096, 'w');
  int done = 0;
  prefill->Write(peer, {}, std::as_bytes(std::span(text)), [&](const absl::Status& status) { done += status.ok(); });
  prefill->Send(peer, "hello", [&](const absl::Status& status) { done += status.ok(); });
  const auto landed = [&] { return decode->landing()[4095] == std::byte{'w'}; };
  Until(*decode, [&] { return prefill->Progress(), at_decode.messages == 1 && done == 2 && landed(); });
  EXPECT_EQ(at_decode.connected.size(), 1u);
}

TEST(GreetedPeer, WhoKnowsTheSecretSendsAndWrites) {
  ExpectMessagesAndWrites<TcpTransport>();
  ExpectMessagesAndWrites<ShmTransport>();
}

// ---- what a stranger hears

TEST(GreetedPeer, WhoConnectsHearsNothingOfOursBeforeItsProof) {
  Worker victim(With(Secret()));
  Liar liar(*victim.transport);
  Knower knower(Secret());
  liar.Say(knower.call);
  const std::string answer = Hear(victim, liar, trust::kAnswerBytes);
  EXPECT_EQ(answer.size(), trust::kAnswerBytes);
  while (victim.transport->Progress()) {
  }
  EXPECT_EQ(liar.Hear(), "");
  EXPECT_TRUE(victim.side.connected.empty());
  liar.Say(knower.ProofFor(answer));
  EXPECT_GE(Hear(victim, liar, sizeof(tcp::FrameHeader) + sizeof(tcp::HelloBody)).size(),
            sizeof(tcp::FrameHeader) + sizeof(tcp::HelloBody));
  liar.Say(HelloFrame(0, 0));
  Until(*victim.transport, [&] { return !victim.side.connected.empty(); });
}

TEST(GreetedPeer, WhoIsDialledHearsNothingOfOursBeforeHisProof) {
  const int listener = tcp::Listen("127.0.0.1", 0).value();
  Worker caller(With(Secret(), {}));
  const PeerNumber peer = caller.transport->Connect("tcp:" + tcp::LocalAddress(listener)).value();
  caller.transport->Send(peer, "a message for a friend", [](const absl::Status&) {});
  int stranger = -1;
  Until(*caller.transport, [&] { return stranger >= 0 || (stranger = tcp::Accept(listener)) >= 0; });
  std::string heard;
  const auto hear = [&] {
    char bytes[4096];
    const ssize_t got = recv(stranger, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) heard.append(bytes, static_cast<size_t>(got));
    return got;
  };
  Until(*caller.transport, [&] { return hear(), heard.size() >= trust::kCallBytes; });
  const std::string answer = "BATONHI\n\x01" + std::string(trust::kAnswerBytes - 9, 'x');
  ASSERT_EQ(send(stranger, answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
  Until(*caller.transport, [&] { return hear() == 0; });
  EXPECT_EQ(heard.size(), trust::kCallBytes);
  EXPECT_EQ(caller.why(), "the peer has another cluster secret");
  close(stranger), close(listener);
}

// ---- who is refused

TEST(GreetedPeer, BothEndsSayThatSecretsDiffer) {
  Worker victim(With(Secret('a'))), caller(With(Secret('b'), {}));
  ASSERT_TRUE(caller.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, caller, [&] { return !victim.side.lost.empty() && !caller.side.lost.empty(); });
  EXPECT_EQ(caller.why(), "the peer has another cluster secret");
  EXPECT_EQ(victim.why(), "the peer left when it saw our proof: it has another cluster secret");
  EXPECT_TRUE(victim.side.connected.empty());
}

TEST(GreetedPeer, WhoHasNoSecretIsToldApart) {
  Worker with(With(Secret())), without(With(nullptr));
  ASSERT_TRUE(without.transport->Connect(with.transport->address()).ok());
  UntilBoth(with, without, [&] { return !with.side.lost.empty() && !without.side.lost.empty(); });
  EXPECT_THAT(with.why(), HasSubstr("started without --cluster-secret-file"));
  with.side.lost.clear(), with.side.lost_why = {}, without.side.lost.clear();
  ASSERT_TRUE(with.transport->Connect(without.transport->address()).ok());
  UntilBoth(with, without, [&] { return !with.side.lost.empty() && !without.side.lost.empty(); });
  EXPECT_THAT(with.why(), HasSubstr("started without --cluster-secret-file"));
  EXPECT_TRUE(with.side.connected.empty() && without.side.connected.empty());
}

/// Says `call`, then what `proof_of` makes of the answer. Why it was refused.
std::string WhyRefused(Worker& victim, const std::string& call,
                       const std::function<std::string(std::string answer)>& proof_of) {
  Liar liar(*victim.transport);
  liar.Say(call);
  liar.Say(proof_of(Hear(victim, liar, trust::kAnswerBytes)));
  victim.side.lost.clear();
  Until(*victim.transport, [&] { return !victim.side.lost.empty(); });
  return victim.why();
}

TEST(GreetedPeer, ReplayAndReflectionAndGuessesAreRefused) {
  Worker victim(With(Secret()));
  std::string old_call, old_proof;
  {
    Knower knower(Secret());
    Liar liar(*victim.transport);
    liar.Say(old_call = knower.call);
    liar.Say(old_proof = knower.ProofFor(Hear(victim, liar, trust::kAnswerBytes)));
    liar.Say(HelloFrame(0, 0));
    Until(*victim.transport, [&] { return victim.side.connected.size() == 1; });
  }
  const std::string refused = "the peer has another cluster secret";
  EXPECT_EQ(WhyRefused(victim, old_call, [&](const std::string&) { return old_proof; }), refused);
  EXPECT_EQ(
      WhyRefused(victim, old_call,
                 [](const std::string& answer) { return answer.substr(trust::kAnswerBytes - trust::kProofBytes); }),
      refused);
  EXPECT_EQ(WhyRefused(victim, old_call, [](const std::string&) { return std::string(trust::kProofBytes, 'g'); }),
            refused);
  EXPECT_EQ(victim.side.connected.size(), 1u);
}

TEST(GreetedPeer, NoFrameIsTakenForAGreeting) {
  for (const std::string& bytes :
       {HelloFrame(0, 0), Promise(tcp::FrameKind::kWrite, uint64_t{1} << 62),
        Promise(tcp::FrameKind::kMessage, 16 << 20), std::string("GET / HTTP/1.1\r\n\r\n")}) {
    Worker victim(With(Secret()));
    Liar liar(*victim.transport);
    liar.Say(bytes);
    Until(*victim.transport, [&] { return !victim.side.lost.empty(); });
    EXPECT_THAT(victim.why(), HasSubstr("started without --cluster-secret-file"));
    EXPECT_EQ(liar.Hear(), "");
  }
}

TEST(GreetedPeer, WhoSaysItByteByByteHasTwoSecondsInAll) {
  Worker victim(With(Secret()));
  Liar liar(*victim.transport);
  const Knower knower(Secret());
  const auto start = std::chrono::steady_clock::now();
  size_t said = 0;
  Until(*victim.transport, [&] {
    const bool due = std::chrono::steady_clock::now() >= start + said * std::chrono::milliseconds(100);
    if (due && said < knower.call.size() && victim.side.lost.empty()) liar.Say(knower.call.substr(said++, 1));
    return !victim.side.lost.empty();
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(victim.side.lost_why)) << victim.side.lost_why;
  EXPECT_THAT(said, AllOf(::testing::Ge(10u), ::testing::Lt(trust::kCallBytes)));
}

// ---- many

TEST(GreetedPeer, AFloodOfStrangersLeavesWorkersAlone) {
  Worker victim(With(Secret())), worker(With(Secret(), {}));
  const PeerNumber peer = worker.transport->Connect(victim.transport->address()).value();
  UntilBoth(victim, worker, [&] { return victim.side.connected.size() == 1; });
  std::vector<std::unique_ptr<Liar>> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(std::make_unique<Liar>(*victim.transport));
    if (i % 3 > 0) strangers.back()->Say(i % 3 == 1 ? Knower(Secret('x')).call : HelloFrame(1, 4096));
    worker.transport->Send(peer, "work", [](const absl::Status&) {});
    worker.transport->Progress(), victim.transport->Progress();
  }
  UntilBoth(victim, worker, [&] { return victim.side.messages == 300 && victim.side.lost.size() == 300; });
  EXPECT_EQ(victim.side.connected.size(), 1u);
  EXPECT_TRUE(worker.side.lost.empty());
  Worker late(With(Secret(), {}));
  ASSERT_TRUE(late.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, late, [&] { return victim.side.connected.size() == 2; });
}

TEST(GreetedPeer, OneHostHasItsShareOfConnections) {
  TcpOptions options = With(Secret());
  options.max_peers_of_host = 2;
  Worker victim(options), worker(With(Secret(), {}));
  const PeerNumber first = worker.transport->Connect(victim.transport->address()).value();
  ASSERT_TRUE(worker.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, worker, [&] { return victim.side.connected.size() == 2; });
  ASSERT_TRUE(worker.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, worker, [&] { return !victim.side.lost.empty(); });
  EXPECT_EQ(victim.why(), "2 connections of 127.0.0.1 and 2 in all, at most 2 and 4096");
  worker.transport->Close(first, [] {});
  UntilBoth(victim, worker, [&] { return victim.side.lost.size() == 2; });
  ASSERT_TRUE(worker.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, worker, [&] { return victim.side.connected.size() == 3; });
}

TEST(GreetedPeer, AllHostsTogetherHaveTheirs) {
  TcpOptions options = With(nullptr);
  options.max_peers = 1;
  Worker victim(options), worker(With(nullptr, {}));
  ASSERT_TRUE(worker.transport->Connect(victim.transport->address()).ok());
  ASSERT_TRUE(worker.transport->Connect(victim.transport->address()).ok());
  UntilBoth(victim, worker, [&] { return !victim.side.lost.empty(); });
  EXPECT_EQ(victim.why(), "1 connections of 127.0.0.1 and 1 in all, at most 512 and 1");
  EXPECT_EQ(victim.side.connected.size(), 1u);
}

}  // namespace
}  // namespace baton
