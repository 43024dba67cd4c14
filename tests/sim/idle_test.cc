// An hour in which nobody asks anything changes nothing for who asks then: leases, watches, renewals, canaries, relay
// credits, connections and the prefix cache stand as they did. In virtual time.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <sstream>

#include "common/log.h"
#include "sim/cluster.h"
#include "sim/stepped_engine.h"

namespace baton::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// Warnings and errors while it lives.
class CaughtWarnings {
 public:
  CaughtWarnings() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("caught", std::make_shared<spdlog::sinks::ostream_sink_st>(out_));
    logger->set_level(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
  }
  ~CaughtWarnings() { spdlog::set_default_logger(before_); }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::shared_ptr<spdlog::logger> before_;
};

class Idle {
 public:
  explicit Idle(const ClusterScenario& scenario) : cluster_(scenario) { cluster_.Start(); }
  void RunUntil(TimePoint end) {
    while (cluster_.now() < end && cluster_.broken().empty()) ASSERT_TRUE(cluster_.Step());
  }
  void RunFor(Duration time) { RunUntil(cluster_.now() + time); }
  /// What a client of the first router gets for it.
  ClientView Ask(const std::string& id, const std::vector<int32_t>& prompt) {
    router::TokenizedRequest request;
    request.request_id = id;
    request.prompt = prompt;
    request.sampling.max_tokens = 40;
    request.sampling.temperature = 0.9f;
    request.sampling.seed = 7;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 1;
    const auto view = std::make_shared<ClientView>();
    cluster_.routers()[0]->Ask(std::move(request), view);
    const TimePoint by = cluster_.now() + seconds(30);
    while (view->end == ClientView::End::kNone && cluster_.now() < by && cluster_.broken().empty()) cluster_.Step();
    EXPECT_EQ(view->end, ClientView::End::kComplete) << id << ": " << view->failure.message;
    EXPECT_EQ(cluster_.broken(), "");
    return *view;
  }
  const Cluster& cluster() const { return cluster_; }

 private:
  Cluster cluster_;
};

std::string TextOf(const ClientView& client) {
  std::string all;
  for (const auto& [index, choice] : client.choices) all += choice.tokens + choice.text + choice.end;
  return all;
}

ClusterScenario Calm(FenceKind fence) {
  ClusterScenario s;
  s.seed = 11;
  s.requests = 0;
  s.prefills = s.decodes = s.routers = 2;
  s.fence = fence;
  s.canaries = true;
  s.credit_tokens = 8;  // an answer takes several
  s.most_tokens = 40;
  return s;
}

class IdleHour : public ::testing::TestWithParam<FenceKind> {};

TEST_P(IdleHour, ChangesNothingForTheNextRequest) {
  SetLogLevel("error");
  Idle c(Calm(GetParam()));
  c.RunFor(seconds(60));  // workers are found and proven
  const std::vector<int32_t> prompt = engine::RandomTokens(1, 100);
  const std::vector<int32_t> longer = [&] {
    std::vector<int32_t> out = prompt;
    for (int32_t token : engine::RandomTokens(2, 20)) out.push_back(token);
    return out;
  }();
  c.Ask("first", prompt);
  const ClientView before = c.Ask("before", longer);
  ASSERT_GT(before.usage.cached_tokens, 0) << "else an empty cache would do";
  const WireCounters then = c.cluster().wires();
  ASSERT_GT(then.prefills, 0) << "else no KV would travel";
  c.RunFor(milliseconds(5000));
  ASSERT_EQ(c.cluster().Held(), "");

  const CaughtWarnings warnings;
  // The kinds of fence wait in the same way: one of them does for the whole hour.
  const Duration idle = GetParam() == FenceKind::kPeerExit ? Duration(hours(1)) : Duration(minutes(10));
  const TimePoint asleep = c.cluster().now();
  c.RunFor(idle);
  EXPECT_GE(c.cluster().now() - asleep, idle);
  EXPECT_EQ(c.cluster().Held(), "");
  EXPECT_EQ(c.cluster().Shunned(), "");
  const ClientView again = c.Ask("before again", longer);
  const ClientView fresh = c.Ask("fresh", engine::RandomTokens(3, 100));
  const WireCounters now = c.cluster().wires();

  EXPECT_EQ(TextOf(again), TextOf(before));
  EXPECT_EQ(again.usage.completion_tokens, before.usage.completion_tokens);
  EXPECT_GE(again.usage.cached_tokens, before.usage.cached_tokens) << "its prefix is not forgotten";
  EXPECT_LT(again.ended - again.asked, before.ended - before.asked + milliseconds(50)) << "nobody dials first";
  EXPECT_EQ(fresh.usage.cached_tokens, 0);
  EXPECT_GT(now.prefills, then.prefills) << "KV travels as before";
  EXPECT_EQ(now.sessions, then.sessions) << "no connection was made anew";
  EXPECT_EQ(now.again, then.again) << "no leg was tried twice";
  EXPECT_EQ(now.failed_canaries, then.failed_canaries);
  EXPECT_EQ(warnings.text(), "");
}

INSTANTIATE_TEST_SUITE_P(Fences, IdleHour,
                         ::testing::Values(FenceKind::kReceiverWrites, FenceKind::kForcedClose, FenceKind::kPeerExit),
                         [](const auto& info) {
                           return info.param == FenceKind::kReceiverWrites ? "ReceiverWrites"
                                  : info.param == FenceKind::kForcedClose  ? "ForcedClose"
                                                                           : "PeerExit";
                         });

}  // namespace
}  // namespace baton::sim
