// Every RPC in every phase of a worker's life, as one table, over real gRPC: what is answered, with which code.
#include "worker/process/worker_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <tuple>

#include "cli/port_claim.h"
#include "common/check.h"
#include "common/trust/greeting.h"
#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "proto/worker.grpc.pb.h"
#include "tests/state_table.h"
#include "tests/worker/relay_fixture.h"

namespace baton::worker {
namespace {

using std::chrono::seconds;

std::string CodeName(int code) { return std::string(absl::StatusCodeToString(static_cast<absl::StatusCode>(code))); }
std::string CodeName(const grpc::Status& status) { return CodeName(static_cast<int>(status.error_code())); }

WorkerConfig Config(const std::string& role) {
  WorkerConfig c;
  c.role = role;
  c.model = "tests/data/tiny-llama";
  c.load_format = "dummy", c.dtype = "float32";
  c.threads = 1, c.max_num_seqs = 4, c.max_num_batched_tokens = 64, c.kv_cache_memory = 8 << 20, c.max_model_len = 512;
  return c;
}

constexpr char kSecret[] = "a secret that every process knows";

std::string FileWith(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/worker_server_test." + name;
  std::ofstream(path) << text;
  chmod(path.c_str(), 0600);
  return path;
}

/// A running worker and a router's connection to it. In the phases "stranger" and "greeted" the worker has a secret,
/// and the router does not know it or does.
class Live {
 public:
  explicit Live(const std::string& phase) {
    const std::string role = phase == "prefill" || phase == "decode" ? phase : phase == "draining" ? "decode" : "both";
    RoleFactory factory;
    if (role == "prefill") factory = prefill_worker::MakePrefillRole;
    if (role == "decode") factory = decode_worker::MakeDecodeRole;
    if (phase == "loading") {
      factory = [this](const RoleContext&) -> absl::StatusOr<std::unique_ptr<Role>> {
        may_load.get_future().wait();
        return absl::UnavailableError("not today");
      };
    }
    if (phase == "stopped") claim.emplace(cli::PortClaim::Take("127.0.0.1", 0, "--port").value());
    WorkerConfig config = Config(role);
    if (claim) config.port = claim->port();
    if (phase == "stranger" || phase == "greeted") {
      config.cluster_secret_file = FileWith("secret", kSecret);
      config.hash_key_file = FileWith("key", std::string(64, 'a'));
    }
    greets = phase == "greeted";
    server = WorkerServer::Start(config, "test", factory).value();
    stub = v1::Worker::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
    v1::HandshakeReply hello;
    BATON_CHECK(Handshake(hello).ok() == (phase != "stranger"));
    if (phase != "loading")
      BATON_CHECK(server->WaitReady(seconds(60)) && server->LoadStatus().ok(), server->LoadStatus().ToString());
    if (phase == "draining") {
      server->Drain();
      BATON_CHECK(server->WaitDrained(seconds(20)));
    }
    if (phase == "stopped") server->Stop();
  }
  ~Live() {
    may_load.set_value();
    server->Stop();
  }
  std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!token.empty()) context->AddMetadata("baton-token", token);
    if (!greeted.empty()) context->AddMetadata("baton-incarnation", greeted);
    return context;
  }
  grpc::Status Handshake(v1::HandshakeReply& reply, uint32_t protocol = 1, size_t key_bytes = 32) {
    v1::HandshakeRequest request;
    request.mutable_protocol()->set_min(protocol), request.mutable_protocol()->set_max(protocol);
    request.set_hash_key(std::string(key_bytes, 'k'));
    if (greets) request.set_greeting(Proof());
    return stub->Handshake(Context().get(), request, &reply);
  }
  /// What the second call of a handshake says; begins a session.
  std::string Proof() {
    trust::Greeting greeting(trust::ClusterSecret::Of(kSecret).value(), trust::Greeting::Role::kCaller,
                             trust::Purpose::kRpc, trust::NewNonce());
    v1::HandshakeRequest call;
    v1::HandshakeReply reply;
    greeting.Begin(*call.mutable_greeting());
    BATON_CHECK(stub->Handshake(Context().get(), call, &reply).ok());
    std::string_view answer = reply.greeting();
    std::string proof;
    BATON_CHECK(greeting.Take(answer, proof).ok() && greeting.done());
    reply.clear_greeting();
    BATON_CHECK(reply.ByteSizeLong() == 0, "it says more than its greeting: ", reply.ShortDebugString());
    token = greeting.SessionToken();
    return std::string(reinterpret_cast<const char*>(greeting.other_nonce().data()), sizeof(trust::Nonce)) + proof;
  }
  bool greets = false;
  std::string token, greeted;  ///< `greeted`: an incarnation; older routers do not say it
  std::promise<void> may_load;
  std::optional<cli::PortClaim> claim;  ///< so that nobody else answers where a worker has stopped
  std::unique_ptr<WorkerServer> server;
  std::unique_ptr<v1::Worker::Stub> stub;
};

std::string SayHandshake(Live& w, uint32_t protocol, size_t key_bytes) {
  v1::HandshakeReply reply;
  const grpc::Status status = w.Handshake(reply, protocol, key_bytes);
  if (!status.ok()) return CodeName(status);
  if (reply.incarnation().empty())
    return reply.worker_id().empty() || reply.protocol().max() == 0 ? "nothing" : "its name";
  return reply.has_loading() ? "loading" : v1::WorkerRole_Name(reply.role()).substr(12);
}

std::string FirstEvent(Live& w) {
  const auto context = w.Context();
  const auto reader = w.stub->Watch(context.get(), {});
  v1::WorkerEvent event;
  if (!reader->Read(&event)) return CodeName(reader->Finish());
  context->TryCancel();
  const std::string what = event.has_snapshot() ? "snapshot" : "something else";
  while (reader->Read(&event)) continue;
  reader->Finish();
  return what;
}

std::string Relay(Live& w, const v1::Attach& attach) {
  const auto context = w.Context();
  const auto stream = w.stub->Relay(context.get());
  v1::RelayUp up;
  *up.add_attach() = attach;
  stream->Write(up);
  v1::RelayDown down;
  int tokens = 0;
  while (stream->Read(&down)) {
    for (const v1::RelayEntry& entry : down.entries()) {
      tokens += entry.token_ids_size();
      if (entry.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) continue;
      stream->WritesDone();
      while (stream->Read(&down)) continue;
      stream->Finish();
      return entry.has_error() ? "Error(" + CodeName(entry.error().code()) + ")" : std::to_string(tokens) + " tokens";
    }
  }
  return CodeName(stream->Finish());
}

std::string Reserve(Live& w, uint32_t prompt_len, uint32_t expiry_ms = 0, uint32_t lease_ms = 0) {
  v1::ReserveRequest request;
  v1::ReserveReply reply;
  request.set_expiry_ms(expiry_ms), request.set_lease_ms(lease_ms);
  request.mutable_key()->set_request_id("reserve" + std::to_string(prompt_len));
  request.set_prompt_len(prompt_len);
  const grpc::Status status = w.stub->Reserve(w.Context().get(), request, &reply);
  if (!status.ok()) return CodeName(status);
  return reply.has_nack() ? "Nack(" + CodeName(reply.nack().code()) + ")" : "ticket";
}

std::string Prefill(Live& w) {
  v1::PrefillRequest request;
  request.mutable_key()->set_request_id("p"), request.mutable_key()->set_epoch(1);
  request.set_prompt_token_ids(TokenBytes({1, 2, 3})), request.set_prompt_len(3);
  const auto context = w.Context();
  const auto reader = w.stub->Prefill(context.get(), request);
  v1::PrefillReply reply;
  while (reader->Read(&reply)) continue;
  return CodeName(reader->Finish());
}

std::string Cancel(Live& w, const std::string& id) {
  v1::CancelRequest request;
  v1::CancelReply reply;
  request.mutable_key()->set_request_id(id);
  const grpc::Status status = w.stub->Cancel(w.Context().get(), request, &reply);
  return status.ok() ? (reply.known() ? "known" : "unknown") : CodeName(status);
}

using Say = std::function<std::string(Live&)>;
const std::vector<std::pair<std::string, Say>>& Calls() {
  static const std::vector<std::pair<std::string, Say>> calls = {
      {"Handshake", [](Live& w) { return SayHandshake(w, 1, 32); }},
      {"Handshake, no key", [](Live& w) { return SayHandshake(w, 1, 0); }},
      {"Handshake, short key", [](Live& w) { return SayHandshake(w, 1, 31); }},
      {"Handshake, other protocol", [](Live& w) { return SayHandshake(w, 99, 32); }},
      {"Watch", [](Live& w) { return FirstEvent(w); }},
      {"Relay a prompt", [](Live& w) { return Relay(w, MakeAttach("a", 1, 20, 3)); }},
      {"Relay nonsense",
       [](Live& w) {
         v1::Attach a = MakeAttach("b", 1, 20, 3);
         a.set_prompt_len(21);
         return Relay(w, a);
       }},
      {"Relay an unknown ticket",
       [](Live& w) {
         v1::Attach a = MakeAttach("c", 1, 20, 3);
         a.set_ticket("t");
         return Relay(w, a);
       }},
      {"Reserve", [](Live& w) { return Reserve(w, 20); }},
      {"Reserve again", [](Live& w) { return Reserve(w, 20); }},
      {"Reserve, too long", [](Live& w) { return Reserve(w, 512); }},
      {"Reserve for 49 days", [](Live& w) { return Reserve(w, 21, 4294967295u); }},
      {"Reserve, lease of 49 days", [](Live& w) { return Reserve(w, 22, 1000, 4294967295u); }},
      {"Flip within 49 days",
       [](Live& w) {
         v1::FlipRequest request;
         v1::FlipReply reply;
         request.set_role(v1::WORKER_ROLE_DECODE);
         request.set_deadline_ms(4294967295u);
         return CodeName(w.stub->Flip(w.Context().get(), request, &reply));
       }},
      {"Prefill without a ticket", [](Live& w) { return Prefill(w); }},
      {"Cancel, reserved", [](Live& w) { return Cancel(w, "reserve20"); }},
      {"Cancel, unknown", [](Live& w) { return Cancel(w, "nobody"); }},
      {"Drain",
       [](Live& w) {
         return CodeName(w.stub->Drain(w.Context().get(), {}, std::make_unique<v1::DrainReply>().get()));
       }},
      {"Relay after the drain", [](Live& w) { return Relay(w, MakeAttach("d", 1, 20, 3)); }},
      {"Drain again",
       [](Live& w) {
         return CodeName(w.stub->Drain(w.Context().get(), {}, std::make_unique<v1::DrainReply>().get()));
       }},
  };
  return calls;
}

constexpr std::array kPhases = {"loading", "both", "prefill", "decode", "draining", "stopped", "stranger", "greeted"};

// call, in this order | one cell per phase; the last three change it
constexpr const char* kTable = R"(
Handshake                 | loading | BOTH | PREFILL | DECODE | DECODE | UNAVAILABLE | PERMISSION_DENIED | BOTH
Handshake, no key         | loading | BOTH | PREFILL | DECODE | DECODE | UNAVAILABLE | PERMISSION_DENIED | BOTH
Handshake, short key      | INVALID_ARGUMENT | INVALID_ARGUMENT | INVALID_ARGUMENT | INVALID_ARGUMENT | INVALID_ARGUMENT | UNAVAILABLE | PERMISSION_DENIED | INVALID_ARGUMENT
Handshake, other protocol | its name | its name | its name | its name | its name | UNAVAILABLE | PERMISSION_DENIED | its name
Watch                     | UNAVAILABLE | snapshot | snapshot | snapshot | snapshot | UNAVAILABLE | UNAUTHENTICATED | snapshot
Relay a prompt            | UNAVAILABLE | 3 tokens | 3 tokens | 3 tokens | Error(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | 3 tokens
Relay nonsense            | UNAVAILABLE | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | Error(INVALID_ARGUMENT) | Error(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | Error(INVALID_ARGUMENT)
Relay an unknown ticket   | UNAVAILABLE | Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(INVALID_ARGUMENT) | Error(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | Error(UNAVAILABLE)
Reserve                   | UNAVAILABLE | UNIMPLEMENTED | Nack(UNAVAILABLE) | ticket | Nack(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Reserve again             | UNAVAILABLE | UNIMPLEMENTED | Nack(UNAVAILABLE) | ticket | Nack(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Reserve, too long         | UNAVAILABLE | UNIMPLEMENTED | Nack(UNAVAILABLE) | Nack(INVALID_ARGUMENT) | Nack(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Reserve for 49 days       | UNAVAILABLE | UNIMPLEMENTED | Nack(UNAVAILABLE) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Reserve, lease of 49 days | UNAVAILABLE | UNIMPLEMENTED | Nack(UNAVAILABLE) | Nack(INVALID_ARGUMENT) | Nack(INVALID_ARGUMENT) | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Flip within 49 days       | INVALID_ARGUMENT | FAILED_PRECONDITION | INVALID_ARGUMENT | INVALID_ARGUMENT | INVALID_ARGUMENT | UNAVAILABLE | UNAUTHENTICATED | FAILED_PRECONDITION
Prefill without a ticket  | UNAVAILABLE | UNIMPLEMENTED | INVALID_ARGUMENT | UNAVAILABLE | UNAVAILABLE | UNAVAILABLE | UNAUTHENTICATED | UNIMPLEMENTED
Cancel, reserved          | unknown | unknown | unknown | known | unknown | UNAVAILABLE | UNAUTHENTICATED | unknown
Cancel, unknown           | unknown | unknown | unknown | unknown | unknown | UNAVAILABLE | UNAUTHENTICATED | unknown
Drain                     | UNAVAILABLE | OK | OK | OK | OK | UNAVAILABLE | UNAUTHENTICATED | OK
Relay after the drain     | UNAVAILABLE | Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(UNAVAILABLE) | Error(UNAVAILABLE) | UNAVAILABLE | UNAUTHENTICATED | Error(UNAVAILABLE)
Drain again               | UNAVAILABLE | OK | OK | OK | OK | UNAVAILABLE | UNAUTHENTICATED | OK
)";

TEST(WorkerServerTable, EveryCallInEveryPhaseIsAnswered) {
  std::map<std::string, std::unique_ptr<Live>> lives;
  for (const char* phase : kPhases) lives[phase] = std::make_unique<Live>(phase);
  ExpectEveryCell(kTable, kPhases, Calls(),
                  [&](const auto&, const std::string& phase, const Say& say) { return say(*lives.at(phase)); });
}

TEST(WorkerServer, EveryDrainIsAnsweredWhenTheLastRequestHasEnded) {
  Live w("both");
  const auto context = w.Context();
  const auto stream = w.stub->Relay(context.get());
  v1::RelayUp up;
  *up.add_attach() = MakeAttach("long", 1, 20, 400);
  up.mutable_attach(0)->set_credit_tokens(1);
  stream->Write(up);
  v1::RelayDown down;
  ASSERT_TRUE(stream->Read(&down));  // it runs, and waits for credit
  std::vector<std::future<grpc::Status>> drains;
  for (int i = 0; i < 2; ++i) {
    drains.push_back(std::async(std::launch::async, [&w] {
      return w.stub->Drain(w.Context().get(), {}, std::make_unique<v1::DrainReply>().get());
    }));
  }
  w.server->Drain();
  EXPECT_FALSE(w.server->WaitDrained(std::chrono::milliseconds(100)));
  v1::RelayUp cancel;
  cancel.add_cancel()->set_request_id("long"), cancel.mutable_cancel(0)->set_attach_gen(1);
  stream->Write(cancel);
  for (auto& drain : drains) EXPECT_EQ(CodeName(drain.get()), "OK");
  EXPECT_TRUE(w.server->WaitDrained(seconds(10)));
  stream->WritesDone();
  while (stream->Read(&down)) continue;
  stream->Finish();
}

TEST(WorkerServer, StreamsThatHaveEndedPushOutNone) {
  Live w("both");
  const auto context = w.Context();
  const auto stream = w.stub->Relay(context.get());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Relay(w, MakeAttach(StrCat("ends ", i), 1, 20, 3)), "3 tokens");
  v1::RelayUp up;
  v1::RelayDown down;
  *up.add_attach() = MakeAttach("stays", 1, 20, 3);
  EXPECT_TRUE(stream->Write(up) && stream->Read(&down));
  stream->WritesDone();
  while (stream->Read(&down)) continue;
  EXPECT_EQ(CodeName(stream->Finish()), "OK");
}

void ExpectBothNamed(const grpc::Status& status, const std::string& own) {
  EXPECT_EQ(CodeName(status), "UNAVAILABLE");
  EXPECT_THAT(status.error_message(),
              testing::HasSubstr(StrCat("worker ", own, " answers here, and the router greeted another: ")));
}

// Behind one address there may be several workers: what greeted one must not send its orders to another.
TEST(WorkerServer, ARelayThatAnotherIncarnationWasGreetedForIsRefused) {
  Live w("both");
  v1::HandshakeReply hello;
  ASSERT_TRUE(w.Handshake(hello).ok());
  ASSERT_FALSE(hello.incarnation().empty());
  for (const std::string& greeted : {hello.incarnation(), std::string("another"), std::string()}) {
    w.greeted = greeted;
    const auto context = w.Context();
    const auto stream = w.stub->Relay(context.get());
    stream->WritesDone();
    v1::RelayDown down;
    while (stream->Read(&down)) continue;
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(CodeName(status), greeted == "another" ? "UNAVAILABLE" : "OK") << greeted;
    if (greeted == "another") ExpectBothNamed(status, hello.incarnation());
  }
}

// A worker that has restarted knows nothing of what its router believes to be there.
TEST(WorkerServer, ALegThatAnotherIncarnationWasGreetedForIsRefused) {
  Live decode("decode"), prefill("prefill");
  const auto reserve = [&] { return Reserve(decode, 20); };
  const auto compute = [&] { return Prefill(prefill); };
  const std::vector<std::tuple<Live*, std::function<std::string()>, std::string>> legs = {
      {&decode, reserve, "ticket"}, {&prefill, compute, "INVALID_ARGUMENT"}};  // looked at, and found to have none
  for (const auto& [w, ask, taken] : legs) {
    v1::HandshakeReply hello;
    ASSERT_TRUE(w->Handshake(hello).ok());
    for (const std::string& greeted : {hello.incarnation(), std::string()}) {
      w->greeted = greeted;
      EXPECT_EQ(ask(), taken) << greeted;
    }
    w->greeted = "another";
    EXPECT_EQ(ask(), "UNAVAILABLE");
    EXPECT_EQ(Cancel(*w, "nobody"), "unknown") << "it ends what may be here";
    v1::ReserveReply reply;
    ExpectBothNamed(w->stub->Reserve(w->Context().get(), {}, &reply), hello.incarnation());
  }
}

TEST(WorkerServer, ALegForTheRoleOfBeforeIsRefused) {
  Live w("decode");
  v1::HandshakeReply before, after;
  ASSERT_TRUE(w.Handshake(before).ok());
  v1::FlipRequest request;
  request.set_role(v1::WORKER_ROLE_PREFILL);
  v1::FlipReply reply;
  ASSERT_EQ(CodeName(w.stub->Flip(w.Context().get(), request, &reply)), "OK");
  ASSERT_TRUE(w.Handshake(after).ok());
  ASSERT_EQ(after.incarnation(), reply.incarnation());
  w.greeted = before.incarnation();
  EXPECT_EQ(Reserve(w, 20), "UNAVAILABLE");
  w.greeted = after.incarnation();
  EXPECT_EQ(Reserve(w, 20), "ticket") << "this factory makes one role only";
}

TEST(WorkerServer, AddressInUseIsNamedWithItsFlag) {
  Live w("both");
  WorkerConfig config = Config("both");
  config.port = w.server->port();
  const absl::Status status = WorkerServer::Start(config, "test").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr(std::to_string(config.port)), ::testing::HasSubstr("--port")));
}

TEST(WorkerServer, AModelThatIsNotThereEndsTheLoadWithItsName) {
  WorkerConfig config = Config("both");
  config.model = "tests/data/nothing";
  auto server = WorkerServer::Start(config, "test").value();
  EXPECT_TRUE(server->WaitReady(seconds(20)));
  EXPECT_THAT(std::string(server->LoadStatus().message()), ::testing::HasSubstr("tests/data/nothing"));
}

// A watcher's interval is its own: who asks for a report a minute has one by the time another has a dozen.
TEST(WorkerServer, EachRouterHearsTheLoadAsOftenAsItAsked) {
  Live w("both");
  const auto rare_context = w.Context(), often_context = w.Context();
  v1::WatchRequest rarely, often;
  rarely.set_load_interval_ms(60000), often.set_load_interval_ms(10);
  const auto rare_reader = w.stub->Watch(rare_context.get(), rarely);
  v1::WorkerEvent event;
  int rare = 0, loads = 0;
  while (rare == 0 && rare_reader->Read(&event)) rare += event.has_load();
  const auto often_reader = w.stub->Watch(often_context.get(), often);
  while (loads < 12 && often_reader->Read(&event)) loads += event.has_load();
  EXPECT_EQ(loads, 12);
  rare_context->TryCancel();
  while (rare_reader->Read(&event)) rare += event.has_load();
  EXPECT_EQ(rare, 1);
  often_context->TryCancel();
  while (often_reader->Read(&event)) continue;
  rare_reader->Finish(), often_reader->Finish();
}

// Each of them is answered on the scheduler's thread, a refused one choice by choice.
TEST(WorkerServer, AMessageHasAThousandRequestsAtMost) {
  Live w("both");
  const auto context = w.Context();
  const auto stream = w.stub->Relay(context.get());
  v1::RelayUp up;
  for (int i = 0; i < 1025; ++i) up.add_attach()->mutable_sampling()->set_n(1024);
  stream->Write(up);
  v1::RelayDown down;
  EXPECT_FALSE(stream->Read(&down));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(CodeName(status), "INVALID_ARGUMENT");
  EXPECT_THAT(status.error_message(), testing::AllOf(testing::HasSubstr("1025"), testing::HasSubstr("at most 1024")));
}

TEST(WorkerServer, ACancelNamesNoIdThatNoRouterHas) {
  Live w("decode");
  EXPECT_EQ(Cancel(w, std::string(256, 'r')), "unknown");
  EXPECT_EQ(Cancel(w, std::string(8 << 20, 'r')), "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace baton::worker
