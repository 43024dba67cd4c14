#include "sim/cluster.h"

#include <algorithm>

#include "router/fleet/relay_codec.h"
#include "worker/codec.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr auto kFaultsLast = seconds(6), kAnswersBy = seconds(22), kMemoryBackIn = seconds(5);

router::Generation MakeGeneration(int number, const ClusterScenario& scenario, Timeline& time,
                                  const router::Generation* before) {
  router::Generation g;
  g.request_id = StrCat("r", number);
  const auto length = static_cast<int32_t>(1 + time.Below(static_cast<uint64_t>(scenario.longest)));
  g.prompt = engine::RandomTokens(time.Below(1u << 30), length);
  if (before != nullptr && time.Below(3) == 0) {  // begins as the one before
    g.prompt.insert(g.prompt.begin(), before->prompt.begin(), before->prompt.end());
    g.prompt.resize(std::min<size_t>(g.prompt.size(), static_cast<size_t>(scenario.longest)));
  }
  g.sampling.n = static_cast<int32_t>(time.Below(4) == 0 ? 2 + time.Below(2) : 1);
  g.sampling.max_tokens = static_cast<int32_t>(1 + time.Below(24));
  g.sampling.temperature = time.Below(2) == 0 ? 0.0f : 0.9f;
  g.sampling.seed = time.Below(1ull << 40);
  g.sampling.ignore_eos = true;
  if (time.Below(2) == 0) g.sampling.logprobs = 1;
  if (time.Below(3) == 0) g.sampling.repetition_penalty = 1.3f;
  if (time.Below(4) == 0) g.sampling.stop_token_ids = {3, 17};
  g.priority = static_cast<int32_t>(time.Below(3)) - 1;
  return g;
}

}  // namespace

Cluster::Cluster(const ClusterScenario& scenario)
    : scenario_(scenario),
      time_(scenario.seed),
      network_(std::make_shared<SimNetwork>(scenario.seed, SimPace{static_cast<uint64_t>(scenario.most_turns),
                                                                   static_cast<size_t>(scenario.piece_bytes)})) {
  const FenceStyle fence = scenario_.receiver_writes ? FenceStyle::kReceiverWrites : FenceStyle::kForcedClose;
  const Plant plant{scenario_,
                    time_,
                    faults_on_,
                    faults_,
                    [fence, network = network_](const LandingShape& shape,
                                                TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
                      return std::make_unique<SimTransport>(network, fence, shape, events);
                    },
                    broken_};
  router_ = std::make_unique<RouterNode>(plant);
  for (int p = 0; p < scenario_.prefills; ++p) {
    prefills_.push_back(std::make_unique<PrefillNode>(plant, p, *router_));
    router_->Add(prefills_.back().get());
  }
  for (int d = 0; d < scenario_.decodes; ++d) {
    decodes_.push_back(std::make_unique<DecodeNode>(plant, scenario_.prefills + d, *router_));
    router_->Add(decodes_.back().get());
  }
  for (WorkerNode* worker : Workers()) worker->Start();
}

Cluster::~Cluster() {
  for (WorkerNode* worker : Workers()) {
    if (worker->alive()) worker->Kill();
  }
}

std::vector<WorkerNode*> Cluster::Workers() const {
  std::vector<WorkerNode*> all;
  for (const auto& node : prefills_) all.push_back(node.get());
  for (const auto& node : decodes_) all.push_back(node.get());
  return all;
}

/// Ten times a second.
void Cluster::Disturb() {
  std::vector<WorkerNode*> workers = Workers();
  for (size_t w = 0; w < workers.size(); ++w) {
    WorkerNode& worker = *workers[w];
    if (!faults_on_ || !worker.alive() || worker.stopped()) continue;
    if (time_.Chance(scenario_.cut / 10)) router_->Break(static_cast<int>(w));
    if (time_.Chance(scenario_.stop / 10)) {
      worker.Stop();
      time_.After(time_.Between(milliseconds(50), seconds(4)), [&worker, life = worker.life()] {
        if (worker.life() == life && worker.stopped()) worker.Resume();
      });
    }
    if (time_.Chance(scenario_.die / 10)) {
      worker.Kill();
      ++deaths_;
      time_.After(time_.Between(milliseconds(50), seconds(1)), [&worker] { worker.Start(); });
    }
  }
  time_.After(milliseconds(100), [this] { Disturb(); });
}

std::string Cluster::Run() {
  const TimePoint begin = time_.Now();
  const std::function<void()> tick = [this, &tick] {
    router_->Tick();
    time_.After(milliseconds(50), tick);
  };
  tick();
  Disturb();
  if (scenario_.router_dies_ms > 0) time_.After(milliseconds(scenario_.router_dies_ms), [this] { router_->Vanish(); });
  for (int r = 0; r < scenario_.requests; ++r) {
    asked_.push_back(MakeGeneration(r, scenario_, time_, asked_.empty() ? nullptr : &asked_.back()));
    time_.After(time_.Between(milliseconds(1), milliseconds(scenario_.arrive_ms)), [this, r] {
      router_->Ask(asked_[static_cast<size_t>(r)]);
      if (time_.Chance(scenario_.leave)) router_->Leave(time_.Between(milliseconds(0), milliseconds(300)));
    });
  }
  const auto all_ended = [this] { return router_->clients().size() == asked_.size() && router_->AllEnded(); };
  while (!all_ended() && broken_.empty() && time_.Now() < begin + kAnswersBy) {
    time_.RunNext();
    if (time_.Now() > begin + kFaultsLast) faults_on_ = false;
  }
  if (!broken_.empty()) return broken_;
  if (!all_ended()) return "a client waits for ever";
  faults_on_ = false;
  if (std::string wrong = CheckClients(); !wrong.empty()) return wrong;
  for (WorkerNode* worker : Workers()) {
    if (worker->stopped()) worker->Resume();
  }
  for (const TimePoint by = time_.Now() + kMemoryBackIn; time_.Now() < by && broken_.empty() && !Held().empty();)
    time_.RunNext();
  if (!broken_.empty()) return broken_;
  return Held().empty() ? "" : StrCat("held: ", Held());
}

std::string Cluster::Held() const {
  std::string held;
  for (const WorkerNode* worker : Workers()) held += worker->Holds();
  return held;
}

/// What one worker answers.
std::map<uint32_t, std::string> Cluster::Alone(const router::Generation& generation) const {
  router::AttachLeg order;
  order.leg_id = generation.request_id, order.credit_tokens = 1000, order.position = generation.prompt.size();
  ClusterScenario plain = scenario_;
  plain.chunk = 256;
  engine::Harness one(EngineOptions(plain, 16, 128));
  BATON_CHECK(one.Add(worker::DecodeAttach(router::EncodeAttach(generation, order), {.vocab_size = engine::kFakeVocab},
                                           1, one.now)
                          .value())
                  .ok());
  one.RunAll();
  std::map<uint32_t, std::string> text;
  for (const auto& [key, answer] : one.answers) {
    engine::SequenceOutput output;
    output.tokens = answer.tokens, output.finish = answer.finish, output.stop_token = answer.stop_token;
    const router::RelayNews news = router::DecodeNews(worker::EncodeOutput(output));
    std::string& words = text[key.second];
    for (size_t t = 0; t < news.token_ids.size(); ++t) words += TokenText(news.token_ids[t], news.logprobs, t);
    words += StrCat("end ", static_cast<int>(news.finish));
  }
  return text;
}

std::string Cluster::CheckClients() {
  for (size_t i = 0; i < asked_.size(); ++i) {
    const auto same = std::find_if(asked_.begin(), asked_.end(),
                                   [&](const router::Generation& g) { return g.request_id == router_->request_id(i); });
    const ClientView& client = router_->clients()[i];
    std::map<uint32_t, std::string> want = Alone(*same);
    if (client.end == ClientView::End::kFailed && scenario_.faultless())
      return StrCat(same->request_id, " failed without a fault: ", client.failure.message());
    for (const auto& [choice, text] : client.text) {
      const bool whole = client.end == ClientView::End::kComplete;
      if (whole ? text != want[choice] : !want[choice].starts_with(text))
        return StrCat(same->request_id, " choice ", choice, " got \"", text, "\", one worker answers \"", want[choice],
                      "\"");
    }
    if (client.end == ClientView::End::kComplete && client.text.size() != want.size())
      return StrCat(same->request_id, " got ", client.text.size(), " of ", want.size(), " choices");
  }
  return "";
}

int Cluster::completed() const {
  return static_cast<int>(std::count_if(router_->clients().begin(), router_->clients().end(),
                                        [](const ClientView& c) { return c.end == ClientView::End::kComplete; }));
}

}  // namespace baton::sim
