// A router over gRPC: the TokenizedRequest service, health and reflection.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

#include "proto/generation.grpc.pb.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

class GrpcTest : public RouterTest {
 protected:
  std::shared_ptr<grpc::Channel> Channel() {
    return grpc::CreateChannel(StrCat("127.0.0.1:", server_->grpc_port()), grpc::InsecureChannelCredentials());
  }
  /// A unary call by name with raw bytes, for services whose generated code is not at hand.
  grpc::Status Call(const std::string& method, const std::string& request, std::string* reply) {
    grpc::GenericStub stub(Channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::Slice slice(request);
    grpc::ByteBuffer in(&slice, 1), out;
    std::mutex mutex;
    std::condition_variable done;
    std::optional<grpc::Status> status;
    stub.UnaryCall(&context, method, {}, &in, &out, [&](grpc::Status s) {
      std::lock_guard lock(mutex);
      status = std::move(s);
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return status.has_value(); });
    std::vector<grpc::Slice> slices;
    if (status->ok() && out.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) reply->append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    return *status;
  }
};

TEST_F(GrpcTest, GrpcStreamsTheSameTextWithUsageTimingsAndTrailer) {
  FakeWorker worker({.cached_tokens = 2});
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  v1::GenerateRequest request;
  for (int i = 0; i < 8; ++i) request.mutable_tokens()->add_ids(100 + i);
  request.mutable_sampling()->set_max_tokens(10);
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_logprobs(1);
  request.set_return_token_ids(true);
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  auto reader = stub->Generate(&context, request);
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, int> tokens, finished;
  v1::GenerateChunk chunk, last;
  while (reader->Read(&chunk)) {
    text[chunk.index()] += chunk.text();
    tokens[chunk.index()] += chunk.token_ids_size();
    EXPECT_EQ(chunk.logprobs_size(), chunk.token_ids_size());
    EXPECT_EQ(chunk.request_id(), "mine");
    if (chunk.finish_reason() == v1::FINISH_REASON_LENGTH) ++finished[chunk.index()];
    last = chunk;
  }
  ASSERT_TRUE(reader->Finish().ok());
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(text[i], FakeWorker::TextOf(i, 8, 10));
    EXPECT_EQ(tokens[i], 10);
    EXPECT_EQ(finished[i], 1);
  }
  EXPECT_EQ(last.usage().completion_tokens(), 20);
  EXPECT_EQ(last.usage().cached_tokens(), 2);
  EXPECT_EQ(last.timings().prefill_ms(), 3);
  const auto& trailer = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailer.count("baton-timings-bin"), 1u);
  const auto at = trailer.find("baton-timings-bin");
  v1::StageTimings timings;
  ASSERT_TRUE(timings.ParseFromString(std::string(at->second.data(), at->second.size())));
  EXPECT_EQ(timings.prefill_ms(), 3);
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "mine");
}

TEST_F(GrpcTest, ATokenWhoseTextWaitsForTheNextHasItsLogprobs) {
  FakeWorker worker;
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  v1::GenerateRequest request;
  for (int i = 0; i < 8; ++i) request.mutable_tokens()->add_ids(100 + i);
  request.mutable_sampling()->set_max_tokens(10);
  request.mutable_sampling()->set_logprobs(1);
  request.add_stop(FakeWorker::TextOf(0, 8, 10) + "and more");  // all of it may be its beginning
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  int logprobs = 0;
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) logprobs += chunk.logprobs_size();
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(logprobs, 10);
}

TEST_F(GrpcTest, BeamsAndTheBestOfManyComeWholeAtTheEnd) {
  FakeWorker worker;
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  constexpr int kTokens = 900;  // more than one credit
  for (const bool beams : {true, false}) {
    v1::GenerateRequest request;
    for (int i = 0; i < 8; ++i) request.mutable_tokens()->add_ids(100 + i);
    request.mutable_sampling()->set_max_tokens(kTokens);
    request.mutable_sampling()->set_n(2);
    request.mutable_sampling()->set_best_of(4);
    request.mutable_sampling()->set_use_beam_search(beams);
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, request);
    std::map<uint32_t, std::string> text;
    v1::GenerateChunk chunk, last;
    while (reader->Read(&chunk)) {
      text[chunk.index()] += chunk.text();
      EXPECT_EQ(chunk.logprobs_size(), 0) << "nobody asked for them";
      last = chunk;
    }
    ASSERT_TRUE(reader->Finish().ok());
    EXPECT_EQ(text.size(), 2u);
    EXPECT_EQ(last.usage().completion_tokens(), (beams ? 2 : 4) * kTokens);
    const v1::SamplingParams asked = worker.attaches().back().sampling();
    EXPECT_EQ(asked.use_beam_search(), beams);
    EXPECT_EQ(asked.n(), beams ? 2 : 4) << "a worker finds the best beams, the router the best that were drawn";
    EXPECT_EQ(asked.best_of(), beams ? 4 : 0);
    EXPECT_EQ(asked.has_logprobs(), !beams);
    if (beams) {
      EXPECT_EQ(text[1], FakeWorker::TextOf(1, 8, kTokens));
    }
  }
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_use_beam_search(true);
  request.mutable_sampling()->set_top_p(0.5F);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("`top_p`"), std::string::npos) << status.error_message();
}

TEST_F(GrpcTest, GrpcTakesTextBytesAndChatAndRefusesWhatIsWrong) {
  FakeWorker worker;
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  auto generate = [&](const v1::GenerateRequest& request, std::string* text = nullptr) {
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      if (text) *text += chunk.text();
    }
    return reader->Finish();
  };
  v1::GenerateRequest request;
  EXPECT_EQ(generate(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "no prompt";
  request.mutable_sampling()->set_max_tokens(3);
  request.set_text_bytes(
      "ab\xff\xfe"
      "cd");
  request.set_echo(true);
  std::string text;
  EXPECT_TRUE(generate(request, &text).ok());
  EXPECT_EQ(text.substr(0, 10),
            "ab\xEF\xBF\xBD\xEF\xBF\xBD"
            "cd");
  request.set_echo(false);
  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->mutable_messages(0)->set_content("Hello \"quoted\"\n");
  EXPECT_TRUE(generate(request).ok());
  request.set_model("other");
  EXPECT_EQ(generate(request).error_code(), grpc::StatusCode::NOT_FOUND);
  request.clear_model();
  request.mutable_sampling()->set_top_p(2);
  EXPECT_EQ(generate(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcTest, AGrpcClientThatLeavesOrRunsOutOfTimeCancelsOnTheWorker) {
  FakeWorker worker({.hold_after = 3});
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(9);
  request.mutable_sampling()->set_max_tokens(100);
  v1::GenerateChunk chunk;
  grpc::ClientContext leaves;
  auto reader = stub->Generate(&leaves, request);
  ASSERT_TRUE(reader->Read(&chunk));
  leaves.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(worker.Wait([&] { return worker.cancels().size() == 1; }));
  grpc::ClientContext hurries;
  hurries.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(900));  // gRPC rounds what is longer than 1 s
  reader = stub->Generate(&hurries, request);
  ASSERT_TRUE(reader->Read(&chunk)) << "its time was over before the worker was asked";
  while (reader->Read(&chunk)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(worker.Wait([&] { return worker.cancels().size() == 2; }));
  ASSERT_EQ(worker.attaches().size(), 2u);
  EXPECT_GT(worker.attaches()[1].deadline_ms(), 0u) << "the worker knows the deadline too";
  EXPECT_LE(worker.attaches()[1].deadline_ms(), 900u);
}

// In nanoseconds 64 bits hold 292 years, and a leg's milliseconds in 32 bits 49.7 days.
TEST_F(GrpcTest, ADeadlineOfWeeksOrCenturiesIsNotOverAtOnce) {
  FakeWorker worker;
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(9);
  request.mutable_sampling()->set_max_tokens(3);
  for (const int64_t hours : {1193 * 3, 24 * 365 * 300}) {
    grpc::ClientContext patient;
    patient.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_hours(hours, GPR_TIMESPAN)));
    auto reader = stub->Generate(&patient, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) continue;
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << hours << " hours: " << status.error_message();
    ASSERT_FALSE(worker.attaches().empty());
    EXPECT_EQ(worker.attaches().back().deadline_ms(), 0u) << hours << " hours";
  }
}

TEST_F(GrpcTest, OfATruncatedPromptTheSideThatWasAskedForIsKept) {
  FakeWorker worker({.max_model_len = 100});
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  const auto prompt_tokens = [&](std::optional<int32_t> kept, bool truncates_end, grpc::Status& status) {
    v1::GenerateRequest request;
    for (int i = 0; i < 120; ++i) request.mutable_tokens()->add_ids(i % 90);
    request.mutable_sampling()->set_max_tokens(4);
    if (kept) request.set_truncate_prompt_tokens(*kept);
    request.set_truncates_end(truncates_end);
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, request);
    v1::GenerateChunk chunk, last;
    while (reader->Read(&chunk)) last = chunk;
    status = reader->Finish();
    return last.usage().prompt_tokens();
  };
  grpc::Status status;
  prompt_tokens(std::nullopt, false, status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "120 tokens are too many";
  EXPECT_EQ(prompt_tokens(-1, false, status), 96) << status.error_message();
  EXPECT_EQ(prompt_tokens(7, false, status), 7);
  EXPECT_EQ(prompt_tokens(7, true, status), 7);
  prompt_tokens(0, false, status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "of 0 tokens nothing is made";
}

TEST_F(GrpcTest, AGrpcClientThatReadsNothingForTooLongIsCancelledOnTheWorker) {
  FakeWorker worker({.max_model_len = 1 << 20});
  testing::internal::CaptureStdout();
  Start({&worker}, ImpatientConfig());
  grpc::ChannelArguments args;  // else the client's library takes megabytes that nobody reads
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  auto stub = v1::Generation::NewStub(
      grpc::CreateCustomChannel(StrCat("127.0.0.1:", server_->grpc_port()), grpc::InsecureChannelCredentials(), args));
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(9);
  request.mutable_sampling()->set_max_tokens(60000);
  request.set_return_token_ids(true);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  ASSERT_TRUE(worker.Wait([&] { return worker.cancels().size() == 1; }));
  EXPECT_LT(worker.tokens_sent(), 60000);
  ASSERT_TRUE(worker.Wait([&] { return Metric("baton_router_running_requests") == 0; }));
  EXPECT_EQ(Metric("baton_http_connections_closed_total"), 1);
  while (reader->Read(&chunk)) continue;
  EXPECT_FALSE(reader->Finish().ok());
  std::fflush(stdout);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("grpc port: a call of 127.0.0.1 is ended (slow-reader)"),
            std::string::npos);
}

TEST_F(GrpcTest, KeysGuardIt) {
  FakeWorker worker;
  RouterConfig config;
  config.api_key = {"secret"};
  Start({&worker}, config);
  auto stub = v1::Generation::NewStub(Channel());
  grpc::ClientContext without, with, generate;
  v1::ModelCard card;
  EXPECT_EQ(stub->GetModel(&without, {}, &card).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  with.AddMetadata("authorization", "Bearer secret");
  EXPECT_TRUE(stub->GetModel(&with, {}, &card).ok());
  EXPECT_EQ(card.max_model_len(), 2048);
  v1::GenerateRequest request;
  request.set_text("x");
  v1::GenerateChunk chunk;
  auto reader = stub->Generate(&generate, request);
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(worker.attaches().empty());
}

// What the server announces in its first frame: 9 bytes of header, then settings of 2 bytes and 4.
TEST_F(GrpcTest, AConnectionsCallsAndHeadersAreBounded) {
  FakeWorker worker;
  Start({&worker}, {.max_running_requests = 500});
  HttpConnection c(server_->grpc_port());
  c.Send(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
  std::string got;
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(got[i])); };
  const auto whole = [&] { return got.size() >= 9 && got.size() >= 9 + (at(0) << 16 | at(1) << 8 | at(2)); };
  while (!whole()) {
    const std::string more = c.ReceiveSome();
    ASSERT_FALSE(more.empty());
    got += more;
  }
  ASSERT_EQ(at(3), 4u) << "SETTINGS";
  std::map<uint32_t, uint32_t> settings;
  for (size_t i = 9; i + 6 <= 9 + (at(0) << 16 | at(1) << 8 | at(2)); i += 6)
    settings[at(i) << 8 | at(i + 1)] = at(i + 2) << 24 | at(i + 3) << 16 | at(i + 4) << 8 | at(i + 5);
  EXPECT_EQ(settings.at(3), 628u) << "MAX_CONCURRENT_STREAMS";
  EXPECT_EQ(settings.at(6), 16384u) << "MAX_HEADER_LIST_SIZE";
}

// What they unpack to has no bound in gRPC.
TEST_F(GrpcTest, CompressedMessagesAreRefused) {
  FakeWorker worker;
  Start({&worker});
  auto stub = v1::Generation::NewStub(Channel());
  v1::GenerateRequest request;
  request.set_text(std::string(4 << 20, 'a'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const grpc::Status status = stub->Generate(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
}

// 127.0.0.2 is another address here. A connection is served once the server has sent its SETTINGS.
TEST_F(GrpcTest, OneAddressLeavesConnectionsToOthersAndItsOldestGivesWay) {
  FakeWorker worker;
  Start({&worker}, {.max_connections_per_address = 3});
  const auto served = [&] {
    auto c = std::make_unique<HttpConnection>(server_->grpc_port(), 0, "127.0.0.2");
    c->Send(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
    return c->ReceiveSome().empty() ? nullptr : std::move(c);
  };
  std::vector<std::unique_ptr<HttpConnection>> open;
  for (int i = 0; i < 3; ++i) ASSERT_NE(open.emplace_back(served()), nullptr) << i;
  ASSERT_NE(open.emplace_back(served()), nullptr);
  open.front()->ReceiveAll();
  EXPECT_EQ(Metric("baton_http_connections_closed_total"), 1);
  std::string reply;
  EXPECT_TRUE(Call("/grpc.health.v1.Health/Check", "", &reply).ok()) << "of 127.0.0.1";
}

TEST_F(GrpcTest, AKeysLimitsHoldHereToo) {
  const std::string file = testing::TempDir() + "/grpc_limited_keys";
  std::ofstream(file) << "secret name=alice requests-per-minute=1\n";
  FakeWorker worker;
  RouterConfig config;
  config.api_key_file = file;
  Start({&worker}, config);
  auto stub = v1::Generation::NewStub(Channel());
  for (const bool first : {true, false}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer secret");
    v1::GenerateRequest request;
    request.set_text("x");
    request.mutable_sampling()->set_max_tokens(1);
    v1::GenerateChunk chunk;
    auto reader = stub->Generate(&context, request);
    while (reader->Read(&chunk)) continue;
    EXPECT_EQ(reader->Finish().error_code(), first ? grpc::StatusCode::OK : grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST_F(GrpcTest, HealthFollowsTheWorkersAndTheDrain) {
  FakeWorker worker({.loading = true});
  Start({&worker}, {}, false);
  auto health = [&](const std::string& service) {  // HealthCheckRequest.service = 1, HealthCheckResponse.status = 1
    std::string request, reply;
    if (!service.empty()) request = StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    const grpc::Status status = Call("/grpc.health.v1.Health/Check", request, &reply);
    if (!status.ok()) return -static_cast<int>(status.error_code());
    return reply.size() == 2 ? static_cast<int>(reply[1]) : 0;
  };
  constexpr int kServing = 1, kNotServing = 2;
  EXPECT_EQ(health(""), kNotServing);
  worker.DoneLoading();
  EXPECT_TRUE(worker.Wait([&] { return health("") == kServing; }));
  EXPECT_EQ(health("baton.v1.Generation"), kServing);
  EXPECT_EQ(health("no.such.Service"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  server_->Drain();
  EXPECT_EQ(health(""), kNotServing);
}

TEST_F(GrpcTest, ReflectionListsTheService) {
  FakeWorker worker;
  Start({&worker});
  std::string reply;  // ServerReflectionRequest.list_services = 7, as a stream of one
  ASSERT_TRUE(
      Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2), &reply).ok());
  EXPECT_NE(reply.find("baton.v1.Generation"), std::string::npos);
  EXPECT_NE(reply.find("grpc.health.v1.Health"), std::string::npos);
}

TEST_F(GrpcTest, ADrainingRouterIsUnavailable) {
  FakeWorker worker;
  Start({&worker});
  const std::shared_ptr<grpc::Channel> channel = Channel();
  const auto deadline = std::chrono::system_clock::now() + std::chrono::minutes(1);
  ASSERT_TRUE(channel->WaitForConnected(deadline));
  server_->Drain();
  // It has been told to go, and dials again; a connection on which that comes first fails its call by itself.
  ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
  auto stub = v1::Generation::NewStub(channel);
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  grpc::ClientContext context;
  v1::GenerateChunk chunk;
  auto reader = stub->Generate(&context, request);
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
}

}  // namespace
}  // namespace baton::router
