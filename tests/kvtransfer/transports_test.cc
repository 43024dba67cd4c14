// Which transports a worker may use, and what a decode worker says of where it can be reached.
#include "kvtransfer/transports/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvtransfer/transports/ucx_backend.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Kinds(const std::string& transport) {
  std::vector<std::string> kinds = TransportKinds(transport, false, true).value();
  std::erase(kinds, "ucx-rdma");  // where the machine has it
  return kinds;
}

TEST(TransportKinds, AreTriedBestFirstAndTcpIsTheLast) {
  EXPECT_THAT(Kinds("auto"), ElementsAre("shm", "tcp"));
  EXPECT_THAT(Kinds("ucx"), ElementsAre("ucx-shm", "ucx-tcp", "tcp"));
  EXPECT_THAT(Kinds("tcp"), ElementsAre("tcp"));
  EXPECT_THAT(Kinds("shm"), ElementsAre("shm", "tcp"));
  EXPECT_THAT(Kinds("ucx-tcp"), ElementsAre("ucx-tcp", "tcp"));
}

TEST(TransportKinds, NoneOfUcxWhereItMayNotBeUsed) {
  EXPECT_THAT(TransportKinds("auto", false, false).value(), ElementsAre("shm", "tcp"));
  EXPECT_THAT(TransportKinds("ucx", false, false).value(), ElementsAre("tcp"));
}

TEST(TransportKinds, RequireRdmaIsRdmaOrAnErrorThatNamesWhatThereIs) {
  const auto kinds = TransportKinds("auto", true, true);
  if (!RdmaTransports().empty()) {
    ASSERT_TRUE(kinds.ok());
    EXPECT_THAT(*kinds, ElementsAre("ucx-rdma"));
    return;
  }
  EXPECT_EQ(kinds.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::vector<std::string> found = UcxTransports();
  EXPECT_THAT(std::string(kinds.status().message()), HasSubstr(found.empty() ? "no UCX" : found.front()));
}

TEST(LandingAddresses, ComeBackAsTheyWere) {
  const LandingAddresses given{ThisMachine(), {"shm:00ff", "ucx-tcp:00ff", "tcp:127.0.0.1:2"}};
  const auto parsed = LandingAddresses::Parse(given.Pack());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->machine, given.machine);
  EXPECT_EQ(parsed->addresses, given.addresses);
  EXPECT_EQ(KindOf(parsed->addresses[1]), "ucx-tcp");
}

TEST(LandingAddresses, TextThatIsNoAddressIsRefused) {
  for (const char* text : {"", "tcp:127.0.0.1:1", "kv1|machine", "kv2|machine|tcp:127.0.0.1:1"}) {
    EXPECT_FALSE(LandingAddresses::Parse(text).ok()) << text;
  }
}

TEST(LandingAddresses, TcpIsToldWithAnotherHostAndANameIsResolvedFirst) {
  EXPECT_EQ(ToldAs("tcp:0.0.0.0:4000", "decode-0.example"), "tcp:decode-0.example:4000");
  EXPECT_EQ(ToldAs("tcp:[::]:4000", "fd00::1"), "tcp:[fd00::1]:4000");
  for (const char* other : {"shm:00ff", "ucx-tcp:0011", "sim:a", "", "tcp"}) {
    EXPECT_EQ(ToldAs(other, "decode-0.example"), other);
    EXPECT_FALSE(NameToResolve(other)) << other;
  }
  for (const char* number : {"tcp:10.0.0.1:4000", "tcp:[fd00::1]:4000", "tcp:", "tcp:host", "tcp:ho/st:1"})
    EXPECT_FALSE(NameToResolve(number)) << number;
  EXPECT_EQ(NameToResolve("tcp:decode-0.example:4000"), (net::HostPort{"decode-0.example", 4000}));
}

TEST(LandingAddresses, ThisMachineIsTheSameTwice) { EXPECT_EQ(ThisMachine(), ThisMachine()); }

}  // namespace
}  // namespace baton
