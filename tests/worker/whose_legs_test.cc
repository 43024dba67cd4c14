// Two routers that know the cluster's secret, over real gRPC: what one of them says of a leg's key is of its own legs.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "common/check.h"
#include "common/trust/greeting.h"
#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "proto/worker.grpc.pb.h"
#include "tests/worker/relay_fixture.h"
#include "worker/process/worker_server.h"

namespace baton::worker {
namespace {

constexpr char kKnownToAll[] = "a secret that all processes know";
constexpr int kPrompt = 20;

std::unique_ptr<WorkerServer> Serve(const std::string& role, const RoleFactory& factory) {
  const std::string secret = testing::TempDir() + "/whose_legs_test.secret", key = secret + ".key";
  std::ofstream(secret) << kKnownToAll;
  std::ofstream(key) << std::string(64, 'a');
  for (const std::string* file : {&secret, &key}) chmod(file->c_str(), 0600);
  WorkerConfig c;
  c.role = role, c.cluster_secret_file = secret, c.hash_key_file = key;
  c.model = "tests/data/tiny-llama", c.load_format = "dummy", c.dtype = "float32";
  c.threads = 1, c.max_num_seqs = 4, c.max_num_batched_tokens = 64, c.kv_cache_memory = 8 << 20, c.max_model_len = 512;
  auto server = WorkerServer::Start(c, "test", factory).value();
  BATON_CHECK(server->WaitReady(std::chrono::seconds(60)) && server->LoadStatus().ok());
  return server;
}

/// A router before one worker.
class Router {
 public:
  Router(const WorkerServer& worker, std::string name)
      : name_(std::move(name)),
        stub_(v1::Worker::NewStub(
            grpc::CreateChannel("127.0.0.1:" + std::to_string(worker.port()), grpc::InsecureChannelCredentials()))) {
    Greet();
  }
  /// In a session of its own from now on.
  void Greet() {
    trust::Greeting greeting(trust::ClusterSecret::Of(kKnownToAll).value(), trust::Greeting::Role::kCaller,
                             trust::Purpose::kRpc, trust::NewNonce());
    v1::HandshakeRequest call, prove;
    v1::HandshakeReply reply;
    greeting.Begin(*call.mutable_greeting());
    grpc::ClientContext first, second;
    BATON_CHECK(stub_->Handshake(&first, call, &reply).ok());
    std::string_view answer = reply.greeting();
    std::string proof;
    BATON_CHECK(greeting.Take(answer, proof).ok());
    prove.set_greeting(std::string(reinterpret_cast<const char*>(greeting.other_nonce().data()), sizeof(trust::Nonce)) +
                       proof);
    prove.set_router_id(name_);
    prove.mutable_protocol()->set_min(1), prove.mutable_protocol()->set_max(1);
    prove.set_hash_key(std::string(32, 'k'));
    BATON_CHECK(stub_->Handshake(&second, prove, &reply).ok());
    token_ = greeting.SessionToken();
  }
  std::unique_ptr<grpc::ClientContext> Context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context->AddMetadata("baton-token", token_);
    return context;
  }
  v1::ReserveReply Reserve(const std::string& id) {
    v1::ReserveRequest request;
    v1::ReserveReply reply;
    request.mutable_key()->set_request_id(id);
    request.set_prompt_len(kPrompt);
    BATON_CHECK(stub_->Reserve(Context().get(), request, &reply).ok());
    return reply;
  }
  bool Cancel(const std::string& id, uint32_t epoch = 0) {
    v1::CancelRequest request;
    v1::CancelReply reply;
    request.mutable_key()->set_request_id(id), request.mutable_key()->set_epoch(epoch);
    BATON_CHECK(stub_->Cancel(Context().get(), request, &reply).ok());
    return reply.known();
  }
  grpc::Status Prefill(const std::string& id, const v1::ReserveReply& ticket) {
    const v1::Attach like = MakeAttach(id, 1, kPrompt, 4);
    v1::PrefillRequest request;
    *request.mutable_key() = like.key();
    request.mutable_key()->set_epoch(1);
    *request.mutable_ticket() = ticket;
    *request.mutable_sampling() = like.sampling();
    request.set_prompt_token_ids(like.prompt_token_ids()), request.set_prompt_len(kPrompt);
    const auto context = Context();
    const auto reader = stub_->Prefill(context.get(), request);
    v1::PrefillReply reply;
    while (reader->Read(&reply)) continue;
    return reader->Finish();
  }

 private:
  const std::string name_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
  std::string token_;
};

TEST(WhoseLegs, ATicketIsEndedByTheRouterThatReservedItOnly) {
  const auto decode = Serve("decode", decode_worker::MakeDecodeRole);
  Router owner(*decode, "router-a"), other(*decode, "router-b"), nameless(*decode, "");
  const v1::ReserveReply ticket = owner.Reserve("r");
  ASSERT_FALSE(ticket.has_nack());
  EXPECT_FALSE(other.Cancel("r"));
  EXPECT_FALSE(nameless.Cancel("r"));
  EXPECT_EQ(owner.Reserve("r").ticket(), ticket.ticket()) << "it stands";
  owner.Greet();
  EXPECT_TRUE(owner.Cancel("r")) << "the router is the same in another session";
}

TEST(WhoseLegs, ATicketIsToldToTheRouterThatReservedItOnly) {
  const auto decode = Serve("decode", decode_worker::MakeDecodeRole);
  Router owner(*decode, "router-a"), other(*decode, "router-b");
  const v1::ReserveReply ticket = owner.Reserve("r"), others = other.Reserve("r");
  ASSERT_FALSE(others.has_nack());
  EXPECT_NE(others.ticket(), ticket.ticket());
  EXPECT_TRUE(other.Cancel("r"));
  EXPECT_EQ(owner.Reserve("r").ticket(), ticket.ticket()) << "it stands";
}

TEST(WhoseLegs, ACancelThatComesFirstIsOfItsOwnRouterOnly) {
  const auto decode = Serve("decode", decode_worker::MakeDecodeRole);
  const auto prefill = Serve("prefill", prefill_worker::MakePrefillRole);
  Router owner(*decode, "router-a"), other(*decode, "router-b");
  EXPECT_FALSE(other.Cancel("r"));
  const v1::ReserveReply ticket = owner.Reserve("r");
  ASSERT_FALSE(ticket.has_nack()) << ticket.nack().message();
  Router owner_at_prefill(*prefill, "router-a"), other_at_prefill(*prefill, "router-b");
  EXPECT_FALSE(other_at_prefill.Cancel("r", 1));
  const grpc::Status computed = owner_at_prefill.Prefill("r", ticket);
  EXPECT_TRUE(computed.ok()) << computed.error_message();
  EXPECT_FALSE(owner_at_prefill.Cancel("s", 1));
  EXPECT_EQ(owner_at_prefill.Prefill("s", ticket).error_code(), grpc::StatusCode::CANCELLED) << "its own it hears";
}

TEST(WhoseLegs, ARouterHasANameOfBoundedLength) {
  const auto decode = Serve("decode", decode_worker::MakeDecodeRole);
  Router any(*decode, std::string(256, 'r'));
  const auto stub = v1::Worker::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(decode->port()), grpc::InsecureChannelCredentials()));
  v1::HandshakeRequest request;
  v1::HandshakeReply reply;
  request.set_router_id(std::string(257, 'r'));
  const grpc::Status refused = stub->Handshake(any.Context().get(), request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refused.error_message();
}

}  // namespace
}  // namespace baton::worker
