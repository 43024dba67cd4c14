#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "router/telemetry/otlp_json.h"
#include "router/telemetry/request_trace.h"
#include "router/telemetry/span_batch.h"
#include "router/telemetry/trace_parent.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr const char* kCaller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

uint64_t Counting() {
  static uint64_t last = 0;
  return ++last;
}
uint64_t HalfWay() { return 0x0080000000000000ULL; }  // of the 56 bits that decide, the upper half begins here

RequestTrace PairTrace() {
  RequestTrace t{"r1", "toy", "stop"};
  t.traceparent = kCaller;
  t.prefill_worker = "prefill-0";
  t.decode_worker = "decode-0";
  t.prompt_tokens = 7;
  t.completion_tokens = 3;
  t.stages = {.queue_prefill_ms = 4,
              .prefill_ms = 20,
              .transfer_ms = 6,
              .queue_decode_ms = 1,
              .first_decode_ms = 2,
              .decode_ms = 50,
              .router_ms = 3,
              .lost_ms = 0,
              .reserve_ms = 5,
              .network_ms = 8};
  t.ended_unix_ns = 1'000'000'000;
  t.took = milliseconds(100);
  t.first_order = milliseconds(3);
  t.first_token = milliseconds(40);
  t.attached = milliseconds(41);
  return t;
}

std::vector<std::string> Shape(const std::vector<Span>& spans) {
  std::vector<std::string> out;
  for (const Span& s : spans) {
    const auto ms = [&](int64_t ns) { return std::to_string((ns - spans[0].start_unix_ns) / 1'000'000); };
    out.push_back(s.name + " " + ms(s.start_unix_ns) + " " + ms(s.end_unix_ns));
  }
  return out;
}

TEST(TraceParent, IsReadAsTheStandardHasIt) {
  const auto parent = ParseTraceParent(kCaller);
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(parent->parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(parent->sampled);
  EXPECT_FALSE(ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->sampled);
  EXPECT_TRUE(ParseTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later"));
}

TEST(TraceParent, WhatTheStandardForbidsIsNone) {
  for (const char* header : {"", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
                             "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                             "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                             "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
                             "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                             "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x"})
    EXPECT_FALSE(ParseTraceParent(header)) << header;
}

TEST(SpansOf, AHandedOverRequestShowsEachStageWhereItWas) {
  EXPECT_THAT(
      Shape(SpansOf(PairTrace(), 1, Counting)),
      ElementsAre("llm_request 0 100", "router 0 3", "reserve 3 8", "prefill.queue 8 12", "prefill.compute 12 32",
                  "network 32 40", "kv.transfer 41 47", "decode.queue 47 48", "decode.generate 48 98"));
}

TEST(SpansOf, OneWorkersDecodeBeginsWithTheFirstToken) {
  RequestTrace t = PairTrace();
  t.prefill_worker.clear();
  t.attached = milliseconds(3);
  t.stages = {.prefill_ms = 30, .decode_ms = 60, .router_ms = 3, .network_ms = 7};
  EXPECT_THAT(Shape(SpansOf(t, 1, Counting)), ElementsAre("llm_request 0 100", "router 0 3", "prefill.compute 3 33",
                                                          "network 33 40", "decode.generate 40 100"));
}

TEST(SpansOf, ARequestThatNobodyTookIsTheRoutersAlone) {
  RequestTrace t{"r1", "toy", "error", "no worker is ready"};
  t.took = milliseconds(9);
  const std::vector<Span> spans = SpansOf(t, 1, Counting);
  EXPECT_THAT(Shape(spans), ElementsAre("llm_request 0 9", "router 0 9"));
  EXPECT_EQ(spans[0].error, "no worker is ready");
}

TEST(SpansOf, StagesAreBelowTheRequestAndThatBelowTheCaller) {
  const std::vector<Span> spans = SpansOf(PairTrace(), 0, Counting);
  ASSERT_GT(spans.size(), 1u) << "the caller keeps it, whatever the ratio";
  EXPECT_EQ(spans[0].parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(spans[0].server);
  std::set<std::string> ids;
  for (const Span& span : spans) {
    EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_TRUE(ids.insert(span.span_id).second);
    EXPECT_TRUE(&span == spans.data() || span.parent_id == spans[0].span_id) << span.name;
  }
}

TEST(SpansOf, WhatWasMeasuredStandsUnderItsOwnName) {
  RequestTrace trace = PairTrace();
  trace.cached_tokens = 2, trace.thought_tokens = 1, trace.max_tokens = 9, trace.n = 4, trace.attempts = 5;
  const std::vector<Span> spans = SpansOf(trace, 0, Counting);
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : spans[0].attributes) {
    if (const auto* whole = std::get_if<int64_t>(&value)) numbers[name] = static_cast<double>(*whole);
    if (const auto* number = std::get_if<double>(&value)) numbers[name] = *number;
  }
  EXPECT_THAT(
      numbers,
      testing::UnorderedElementsAre(
          testing::Pair("gen_ai.request.max_tokens", 9), testing::Pair("gen_ai.request.temperature", trace.temperature),
          testing::Pair("gen_ai.request.top_p", trace.top_p), testing::Pair("gen_ai.request.n", 4),
          testing::Pair("gen_ai.usage.prompt_tokens", 7), testing::Pair("gen_ai.usage.input_tokens", 7),
          testing::Pair("gen_ai.usage.cache_read.input_tokens", 2), testing::Pair("gen_ai.usage.completion_tokens", 3),
          testing::Pair("gen_ai.usage.output_tokens", 3), testing::Pair("gen_ai.usage.reasoning.output_tokens", 1),
          testing::Pair("gen_ai.latency.time_in_queue", 0.005),
          testing::Pair("gen_ai.latency.time_in_model_prefill", 0.02),
          testing::Pair("gen_ai.latency.time_in_model_decode", 0.05), testing::Pair("gen_ai.latency.e2e", 0.1),
          testing::Pair("gen_ai.latency.time_to_first_token", 0.04), testing::Pair("baton.attempts", 5)));
}

TEST(SpansOf, ACallerThatKeepsNothingGetsNothing) {
  RequestTrace t = PairTrace();
  t.traceparent.back() = '0';
  EXPECT_TRUE(SpansOf(t, 1, Counting).empty());
}

TEST(SpansOf, WithoutACallerTheTraceIdDecides) {
  RequestTrace t = PairTrace();
  t.traceparent = "broken";
  EXPECT_TRUE(SpansOf(t, 0.5, HalfWay).empty());
  EXPECT_FALSE(SpansOf(t, 0.51, HalfWay).empty());
  EXPECT_TRUE(SpansOf(t, 0, Counting).empty());
}

TEST(EncodeSpans, IsWhatTheJsonMappingOfTheProtocolSays) {
  Span span{"llm_request", "0af7",      "b7ad",
            "c0de",        1,           9'007'199'254'740'993,
            true,          "it failed", {{"s", std::string("a\"b")}, {"i", int64_t{42}}, {"d", 0.5}, {"b", true}}};
  const auto json = nlohmann::json::parse(EncodeSpans({"baton-router", "1.2", "x"}, std::vector<Span>{span}));
  const auto& resource = json["resourceSpans"][0];
  EXPECT_EQ(resource["resource"]["attributes"][0],
            (nlohmann::json{{"key", "service.name"}, {"value", {{"stringValue", "baton-router"}}}}));
  const auto& one = resource["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(one["traceId"], "0af7");
  EXPECT_EQ(one["parentSpanId"], "c0de");
  EXPECT_EQ(one["kind"], 2);
  EXPECT_EQ(one["endTimeUnixNano"], "9007199254740993") << "64-bit numbers are strings there";
  EXPECT_EQ(one["status"], (nlohmann::json{{"code", 2}, {"message", "it failed"}}));
  EXPECT_EQ(one["attributes"].dump(),
            R"([{"key":"s","value":{"stringValue":"a\"b"}},{"key":"i","value":{"intValue":"42"}},)"
            R"({"key":"d","value":{"doubleValue":0.5}},{"key":"b","value":{"boolValue":true}}])");
}

std::vector<Span> Some(size_t count) { return std::vector<Span>(count, Span{"x"}); }

TEST(SpanBatch, SendsAtMostABatchAtOnceAndOldestFirst) {
  SpanBatch batch;
  batch.Add({Span{"first"}});
  batch.Add(Some(SpanBatch::kMostAtOnce));
  EXPECT_EQ(batch.DueAt(), TimePoint{});
  const auto next = batch.Next();
  EXPECT_EQ(next.size(), SpanBatch::kMostAtOnce);
  EXPECT_EQ(next[0].name, "first");
  const TimePoint now = TimePoint{} + std::chrono::seconds(5);
  batch.Sent(now);
  EXPECT_EQ(batch.Next().size(), 1u);
  EXPECT_EQ(batch.DueAt(), now + SpanBatch::kEvery) << "few spans wait for others";
  EXPECT_EQ(batch.counts().sent, static_cast<int64_t>(SpanBatch::kMostAtOnce));
}

TEST(SpanBatch, WhatFailedIsSentAgainLaterAndLaterAndThenGivenUp) {
  SpanBatch batch;
  batch.Add(Some(3));
  TimePoint now = TimePoint{} + std::chrono::seconds(5);
  Duration pause{};
  for (int i = 1; i < SpanBatch::kMostTries; ++i) {
    EXPECT_EQ(batch.Next().size(), 3u);
    batch.Add(Some(1));
    EXPECT_EQ(batch.Failed(now), i == 1) << "said once";
    EXPECT_GE(batch.DueAt() - now, pause);
    pause = batch.DueAt() - now;
    EXPECT_LE(pause, SpanBatch::kLongestPause);
    now = batch.DueAt();
  }
  EXPECT_GT(pause, SpanBatch::kEvery);
  EXPECT_EQ(batch.Next().size(), 3u) << "the same ones, whatever came meanwhile";
  EXPECT_FALSE(batch.Failed(now));
  EXPECT_EQ(batch.counts().failed, 3);
  EXPECT_EQ(batch.Next().size(), 5u);
}

TEST(SpanBatch, WhatACollectorNeverTakesMakesWayForTheNextAtOnce) {
  SpanBatch batch;
  batch.Add(Some(SpanBatch::kMostAtOnce));
  batch.Add({Span{"next"}});
  const TimePoint now = TimePoint{} + std::chrono::seconds(5);
  batch.Next();
  EXPECT_TRUE(batch.Refused(now)) << "said once";
  EXPECT_EQ(batch.counts().failed, static_cast<int64_t>(SpanBatch::kMostAtOnce));
  ASSERT_EQ(batch.Next().size(), 1u);
  EXPECT_EQ(batch.Next()[0].name, "next");
  EXPECT_EQ(batch.DueAt(), now + SpanBatch::kEvery);
  EXPECT_FALSE(batch.Refused(now));
  EXPECT_TRUE(batch.empty());
}

TEST(SpanBatch, SpansThatACollectorLeavesOutAreNotCountedAsSent) {
  SpanBatch batch;
  batch.Add(Some(5));
  batch.Next();
  batch.Sent({}, 2);
  EXPECT_EQ(batch.counts().sent, 3);
  EXPECT_EQ(batch.counts().failed, 2);
  batch.Add(Some(1));
  batch.Next();
  batch.Sent({}, 99);
  EXPECT_EQ(batch.counts().sent, 3);
  EXPECT_EQ(batch.counts().failed, 3) << "no more than it was sent";
}

TEST(OtlpJson, WhatACollectorHasNotTakenIsRead) {
  const NotTaken some = ReadNotTaken(R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":"too\nold"}})");
  EXPECT_EQ(some.spans, 3);
  EXPECT_EQ(some.why, "too\\nold");
  EXPECT_EQ(ReadNotTaken(R"({"partialSuccess":{"rejectedSpans":2}})").spans, 2);
  for (const char* nothing : {"", "{}", "null", "[]", R"({"partialSuccess":null})", R"({"partialSuccess":{}})",
                              "<html>", R"({"partialSuccess":{"rejectedSpans":"many","errorMessage":5}})",
                              R"({"partialSuccess":{"rejectedSpans":-4}})"}) {
    EXPECT_EQ(ReadNotTaken(nothing).spans, 0) << nothing;
    EXPECT_EQ(ReadNotTaken(nothing).why, "") << nothing;
  }
}

TEST(SpanBatch, TooManyAreDroppedByWholeRequestsAndCounted) {
  SpanBatch batch;
  batch.Add(Some(SpanBatch::kMostWaiting - 1));
  batch.Add(Some(2));
  batch.Add(Some(1));
  EXPECT_EQ(batch.counts().dropped, 2);
}

}  // namespace
}  // namespace baton::router
