// The event stream: what a request's trail says, what readers get of it, and the state once a second.
#include <gtest/gtest.h>

#include <algorithm>

#include "common/json.h"
#include "common/str_cat.h"
#include "router/events/cluster_state.h"
#include "router/events/event_stream.h"
#include "router/http/console_page.h"

namespace baton::router {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

std::vector<Json> EventsOf(const std::string& text) {
  std::vector<Json> out;
  for (size_t at = text.find("data: "); at != std::string::npos; at = text.find("data: ", at + 1))
    out.push_back(Json::parse(text.substr(at + 6, text.find("\n\n", at) - at - 6)));
  return out;
}

std::string StagesOf(const std::vector<Json>& events) {
  std::string out;
  for (const Json& e : events) {
    if (e["event"] == "request") absl::StrAppend(&out, out.empty() ? "" : " ", e["stage"].get<std::string>());
  }
  return out;
}

TEST(EventBook, AReaderGoesOnWhereItWas) {
  EventBook book(10, 1000);
  book.Append("1"), book.Append("2");
  const EventBook::Batch first = book.From(1);
  EXPECT_EQ(first.text, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(book.From(first.next).text, "");
  book.Append("3");
  EXPECT_EQ(book.From(first.next).text, "data: 3\n\n");
  EXPECT_EQ(book.From(first.next).lost, 0u);
}

TEST(EventBook, IsBoundedInEventsAndBytesAndALateReaderHearsHowManyItMissed) {
  EventBook few(3, 1000);
  for (int i = 1; i <= 10; ++i) few.Append(std::to_string(i));
  EXPECT_EQ(few.From(1).text, "data: 8\n\ndata: 9\n\ndata: 10\n\n");
  EXPECT_EQ(few.From(1).lost, 7u);
  EXPECT_EQ(few.From(5).lost, 3u);
  EventBook small(100, 10);
  for (int i = 0; i < 10; ++i) small.Append("12345");
  EXPECT_LE(small.bytes(), 10u);
  EXPECT_EQ(small.From(1).lost, 8u);
  small.Append(std::string(50, 'x'));
  EXPECT_EQ(small.From(small.next() - 1).lost, 0u) << "one event is there, however long";
}

class EventStreamTest : public testing::Test {
 protected:
  LinkView Worker(int32_t index, const std::string& name, WorkerRole role) {
    WorkerFacts facts{.worker_id = name, .incarnation = "life of " + name, .role = role, .kv_bytes_per_token = 100};
    facts.max_num_seqs = 8;
    LinkView view{.id = {index, 1}, .state = LinkState::kReady, .address = StrCat("h:", index)};
    view.facts = std::make_shared<const WorkerFacts>(facts);
    view.has_load = true;
    view.load.kv_blocks_total = 100;
    view.outstanding = std::make_shared<OutstandingLoad>(clock_);
    return view;
  }
  std::unique_ptr<RequestTrail> Begin(const std::string& id) { return stream_.Begin(id, clock_.Now()); }
  /// What a reader who was greeted hears now.
  std::vector<Json> Heard() {
    const EventBook::Batch batch = stream_.After(next_);
    next_ = batch.next;
    return EventsOf(batch.text);
  }
  void Watch() {
    ASSERT_TRUE(stream_.Enter());
    next_ = stream_.Greeting().next;
  }

  FakeClock clock_;
  ClusterFacts facts_{.readiness = {.ready = true, .status = "ready"}};
  int whys_ = 0;
  EventStream stream_{clock_,
                      1000000,
                      {[this] { return facts_; },
                       [this](const TokenizedRequest&) {
                         ++whys_;
                         return std::string(R"({"options":[]})");
                       },
                       "1.0", "m", "predicted-time"}};
  uint64_t next_ = 0;
};

TEST_F(EventStreamTest, ARequestOfAPairLeavesItsStagesInOrderWithTimesNamesAndBytes) {
  Watch();
  const auto trail = Begin("r1");
  TokenizedRequest g;
  g.prompt = std::vector<int32_t>(50);
  clock_.Advance(milliseconds(2));
  trail->Tokenized(g);
  trail->Placed(RoutedTo{.worker = {1, 1}, .predicted_ttft_ms = 30}, "decode-0", "prefill-0", 1, trail->Why(g));
  trail->Reserving("decode-0");
  clock_.Advance(milliseconds(1));
  trail->Reserved(16);
  trail->Prefill("prefill-0");
  clock_.Advance(milliseconds(20));
  trail->Prefilled({.queue_prefill_ms = 3, .prefill_ms = 15});
  trail->FirstToken();
  trail->Transfer({"shm", "memory put", 5.5, 100}, 34);
  clock_.Advance(milliseconds(150));
  trail->Tokens(9);
  trail->End({.reason = "length",
              .prompt_tokens = 50,
              .completion_tokens = 9,
              .timings = {.prefill_ms = 15, .transfer_ms = 2}});
  const std::vector<Json> events = Heard();
  EXPECT_EQ(StagesOf(events),
            "received tokenized placed reserving reserved prefill prefilled first_token transfer tokens finished");
  EXPECT_EQ(events[1]["at_ms"], 2);
  EXPECT_EQ(events[1]["t"], 1000002) << "unix milliseconds";
  EXPECT_EQ(events[2]["why"]["options"], Json::array());
  EXPECT_EQ(events[2]["prefill_worker"], "prefill-0");
  const Json& transfer = events[8];
  EXPECT_EQ(transfer["bytes"], 3400);
  EXPECT_EQ(transfer["transport"], "shm");
  EXPECT_EQ(transfer["self_test_gigabytes_per_second"], 5.5);
  const Json& end = events.back();
  EXPECT_EQ(end["marks"].size(), 9u) << "of all stages but tokens and the end";
  EXPECT_EQ(end["marks"][3], Json::array({"reserving", 2.0}));
  EXPECT_EQ(end["timings"]["transfer_ms"], 2);
  EXPECT_EQ(end["transfer"]["bytes"], 3400);
}

TEST_F(EventStreamTest, TheEndOfATrailHasEachFigureUnderItsName) {
  Watch();
  Begin("r")->End({.reason = "stop",
                   .prompt_tokens = 1,
                   .completion_tokens = 2,
                   .cached_tokens = 3,
                   .timings = {.queue_prefill_ms = 4,
                               .prefill_ms = 5,
                               .transfer_ms = 6,
                               .queue_decode_ms = 7,
                               .first_decode_ms = 8,
                               .decode_ms = 9,
                               .router_ms = 10,
                               .lost_ms = 11,
                               .reserve_ms = 12,
                               .network_ms = 13},
                   .times = {.first_ms = 14, .last_ms = 15, .gaps_ms = 32, .gaps = 2},
                   .attempts = 17,
                   .migrations = 18});
  const Json end = Heard().back();
  const Json figures = {{"prompt_tokens", 1},  {"completion_tokens", 2}, {"cached_tokens", 3}, {"first_token_ms", 14},
                        {"last_token_ms", 15}, {"mean_gap_ms", 16},      {"attempts", 17},     {"migrations", 18}};
  for (const auto& [name, value] : figures.items()) EXPECT_EQ(end.value(name, Json()), value) << name;
  const Json timings = {{"queue_prefill_ms", 4}, {"prefill_ms", 5}, {"transfer_ms", 6}, {"queue_decode_ms", 7},
                        {"first_decode_ms", 8},  {"decode_ms", 9},  {"router_ms", 10},  {"lost_ms", 11},
                        {"reserve_ms", 12},      {"network_ms", 13}};
  EXPECT_EQ(end["timings"], timings);
}

TEST_F(EventStreamTest, AStateHasEachFigureOfAWorkerUnderItsNameAndItsCountersByTheSecond) {
  ClusterState state;
  facts_.workers = {Worker(0, "d", WorkerRole::kDecode)};
  WorkerLoad& load = facts_.workers[0].load;
  state.Build(facts_, {}, clock_.Now(), 0);
  clock_.Advance(std::chrono::seconds(2));
  load.running = 1, load.waiting = 2, load.queued_tokens = 3, load.last_step_ms = 4, load.decode_step_ms = 5;
  load.steps = 10, load.prompt_tokens = 100, load.prefix_hits_tokens = 40, load.generation_tokens = 20;
  load.preemptions = 30, load.handoff.bytes = 8'000'000'000, load.handoff.seconds = 4;
  load.handoff.tickets = 6, load.handoff.jobs = 7, load.handoff.granted_slots = 8, load.handoff.free_slots = 9;
  load.handoff.quarantined_slots = 10, load.handoff.slots_waiting = 11;
  load.handoff.lanes_failed = 12, load.handoff.wire_digest_mismatches = 13, load.handoff.source_digest_mismatches = 14;
  const Json worker = Json::parse(state.Build(facts_, {}, clock_.Now(), 0))["workers"][0];
  const Json figures = {{"running", 1},
                        {"waiting", 2},
                        {"queued_tokens", 3},
                        {"last_step_ms", 4},
                        {"decode_step_ms", 5},
                        {"steps_per_s", 5},
                        {"prompt_tokens_per_s", 30},
                        {"generation_tokens_per_s", 10},
                        {"preemptions_per_s", 15},
                        {"kv_bytes_per_s", 4'000'000'000},
                        {"kv_gigabytes_per_second", 2}};
  for (const auto& [name, value] : figures.items()) EXPECT_EQ(worker.value(name, Json()), value) << name;
  const Json handoff = {
      {"tickets", 6},        {"jobs", 7},     {"granted_slots", 8}, {"free_slots", 9}, {"quarantined_slots", 10},
      {"slots_waiting", 11}, {"failures", 39}};
  EXPECT_EQ(worker["handoff"], handoff);
}

TEST_F(EventStreamTest, ATrailThatNobodyEndsWasLeftByItsClient) {
  Watch();
  Begin("r1").reset();
  const std::vector<Json> events = Heard();
  EXPECT_EQ(StagesOf(events), "received finished");
  EXPECT_EQ(events.back()["reason"], "abort");
}

TEST_F(EventStreamTest, WaitingIsSaidOnceHoweverOftenAWorkerIsLookedFor) {
  Watch();
  const auto trail = Begin("r1");
  for (int i = 0; i < 5; ++i) trail->Waits("none is ready");
  EXPECT_EQ(StagesOf(Heard()), "received waiting");
}

TEST_F(EventStreamTest, WhileNobodyLooksFewTrailsASecondAreKeptForWhoComes) {
  int kept = 0;
  for (int i = 0; i < 100; ++i) {
    if (const auto trail = Begin(StrCat("r", i))) {
      ++kept;
      trail->End({.reason = "stop"});
    }
  }
  EXPECT_EQ(kept, 20);
  clock_.Advance(milliseconds(1000));
  EXPECT_NE(Begin("later"), nullptr);
  ASSERT_TRUE(stream_.Enter());
  EXPECT_EQ(StagesOf(EventsOf(stream_.Greeting().text)).substr(0, 17), "finished finished");
  for (int i = 0; i < 100; ++i) EXPECT_NE(Begin("now"), nullptr) << "somebody looks";
}

TEST_F(EventStreamTest, NobodyLookingCostsNoChoiceAndLookingCostsFew) {
  const auto unseen = Begin("r1");
  EXPECT_EQ(unseen->Why({}), "");
  EXPECT_EQ(whys_, 0);
  Watch();
  for (int i = 0; i < 100; ++i) unseen->Why({});
  EXPECT_EQ(whys_, 20);
}

TEST_F(EventStreamTest, ReadersAreBounded) {
  for (int i = 0; i < EventStream::kMostReaders; ++i) EXPECT_TRUE(stream_.Enter());
  EXPECT_FALSE(stream_.Enter());
  stream_.Leave();
  EXPECT_TRUE(stream_.Enter());
}

TEST_F(EventStreamTest, AStateASecondForAllReadersTogether) {
  Watch();
  const auto states = [](const std::vector<Json>& events) {
    return std::ranges::count_if(events, [](const Json& e) { return e["event"] == "state"; });
  };
  EXPECT_EQ(states(Heard()), 0) << "the greeting had one";
  clock_.Advance(milliseconds(999));
  EXPECT_EQ(states(Heard()), 0);
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(states(Heard()), 1);
  ASSERT_TRUE(stream_.Enter());
  EXPECT_EQ(states(EventsOf(stream_.Greeting().text)), 1);
  EXPECT_EQ(states(Heard()), 0) << "the second reader heard the same one";
}

TEST_F(EventStreamTest, TheStateHasRatesLinksAndWhatRuns) {
  facts_.workers = {Worker(0, "prefill-0", WorkerRole::kPrefill), Worker(1, "decode-0", WorkerRole::kDecode)};
  facts_.cached_tokens = {0, 48};
  facts_.workers[1].facts = [&] {
    WorkerFacts f = *facts_.workers[1].facts;
    f.tokens_per_block = 16;
    return std::make_shared<const WorkerFacts>(f);
  }();
  facts_.workers[0].load.handoff.peers =
      std::make_shared<const std::vector<PeerPath>>(std::vector<PeerPath>{{"life of decode-0", "shm", "put", 6}});
  facts_.running_requests = 1;
  Watch();
  const auto trail = Begin("r1");
  trail->Placed(RoutedTo{}, "decode-0", "prefill-0", 1, "");
  trail->Transfer({"shm", "put", 6, 100}, 40);
  facts_.workers[1].load.generation_tokens = 500;
  facts_.workers[1].load.kv_blocks_used = 98;
  clock_.Advance(milliseconds(2000));
  const std::vector<Json> events = Heard();
  const Json& state = events.back();
  ASSERT_EQ(state["event"], "state");
  EXPECT_EQ(state["generation_tokens_per_s"], 250);
  EXPECT_EQ(state["workers"][1]["generation_tokens_per_s"], 250);
  EXPECT_EQ(state["workers"][1]["kv"]["used"], 98);
  EXPECT_EQ(state["workers"][1]["kv"]["cached"], 2) << "three, but two blocks are left beside those in use";
  EXPECT_EQ(state["links"][0]["to"], "decode-0");
  EXPECT_EQ(state["links"][0]["bytes_per_s"], 2000);
  EXPECT_EQ(state["requests"][0]["id"], "r1");
  EXPECT_EQ(state["requests"][0]["stage"], "transfer");
  EXPECT_EQ(state["requests"][0]["age_ms"], 2000);
}

TEST_F(EventStreamTest, AnotherProcessUnderTheSameNameHasNoRatesYet) {
  facts_.workers = {Worker(0, "w", WorkerRole::kBoth)};
  facts_.workers[0].load.steps = 1000;
  Watch();
  WorkerFacts other = *facts_.workers[0].facts;
  other.incarnation = "second life";
  facts_.workers[0].facts = std::make_shared<const WorkerFacts>(other);
  facts_.workers[0].load.steps = 3;
  clock_.Advance(milliseconds(1000));
  EXPECT_TRUE(Heard().back()["workers"][0]["steps_per_s"].is_null());
}

TEST(ConsolePage, IsSmallAsksNobodyElseAndItsPolicyAllowsItsOwnScriptsOnly) {
  EXPECT_LE(kConsolePage.size(), 200u << 10);
  const HttpResponse response = ConsoleResponse();
  const std::string policy = response.headers[0].second;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_EQ(policy.find("default-src 'none'; script-src 'sha256-"), 0u) << policy;
  EXPECT_EQ(kConsolePage.find("{{"), std::string_view::npos) << "a file was not put in";
  for (size_t at = kConsolePage.find("//"); at != std::string_view::npos; at = kConsolePage.find("//", at + 2)) {
    const std::string_view before = kConsolePage.substr(at < 6 ? 0 : at - 6, 6);
    EXPECT_FALSE(before.ends_with("https:")) << kConsolePage.substr(at - 6, 60);
    if (before.ends_with("http:")) {
      EXPECT_EQ(kConsolePage.substr(at, 20), "//www.w3.org/2000/sv") << "a name, no address";
    }
  }
  EXPECT_EQ(
      ContentPolicyOf("<script>1</script>").find("script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"),
      20u);
}

}  // namespace
}  // namespace baton::router
