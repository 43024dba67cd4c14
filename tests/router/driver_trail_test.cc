// What a request's driver tells those that watch: the stages that it passes.
#include <gtest/gtest.h>

#include "router/events/event_stream.h"
#include "tests/router/driver_world.h"

namespace baton::router {
namespace {

class DriverTrail : public RequestDriverTest {
 protected:
  /// Of a request that two workers share; the second one computes up to `local` uncached tokens of the prompt itself.
  std::string EventsOfPair(const std::string& id, uint32_t local) {
    workers_.next = {{kD1, true, local}};
    const Running r = Ask(id);
    r.call->LeaveTrail(stream_.Begin(id, workers_.clock.Now()));
    Reserved(id, 1, absl::OkStatus());
    if (local == 0) Prefilled(id, 1, 1, absl::OkStatus());
    r.call->ClientGone();
    const EventBook::Batch heard = stream_.After(next_);
    next_ = heard.next;
    return heard.text;
  }

  EventStream stream_{workers_.clock,
                      1000000,
                      {[] { return ClusterFacts(); }, [](const TokenizedRequest&) { return std::string("{}"); }, "1.0",
                       "m", "predicted-time"}};
  uint64_t next_ = 0;
};

TEST_F(DriverTrail, KvIsTransferredOfPromptsAloneThatWereComputedElsewhere) {
  ASSERT_TRUE(stream_.Enter());
  next_ = stream_.Greeting().next;
  const std::string far = EventsOfPair("far", 0);
  EXPECT_NE(far.find(R"("stage":"transfer")"), std::string::npos) << far;
  EXPECT_EQ(far.find(R"("stage":"attached")"), std::string::npos) << far;
  const std::string near = EventsOfPair("near", 100);
  EXPECT_EQ(near.find(R"("stage":"transfer")"), std::string::npos) << near;
  EXPECT_NE(near.find(R"("stage":"attached")"), std::string::npos) << near;
}

}  // namespace
}  // namespace baton::router
