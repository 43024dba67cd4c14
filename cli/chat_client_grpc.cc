#include <grpcpp/grpcpp.h>

#include "absl/strings/str_format.h"
#include "cli/chat_client.h"
#include "common/clock.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/tls/grpc_credentials.h"
#include "proto/generation.grpc.pb.h"

namespace baton::cli {
namespace {

std::vector<std::pair<std::string, double>> StagesOfMessage(const v1::StageTimings& t) {
  return {{"queue_prefill", t.queue_prefill_ms()},
          {"prefill", t.prefill_ms()},
          {"transfer", t.transfer_ms()},
          {"queue_decode", t.queue_decode_ms()},
          {"first_decode", t.first_decode_ms()},
          {"decode", t.decode_ms()},
          {"router", t.router_ms()},
          {"lost", t.lost_ms()},
          {"reserve", t.reserve_ms()},
          {"network", t.network_ms()}};
}

class GrpcChatClient final : public ChatClient {
 public:
  explicit GrpcChatClient(const std::string& target) : target_(target) {}

  absl::Status Connect(bool with_tls, tls::TlsFiles files) {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (with_tls) {
      if (files.ca.empty()) files.ca = tls::SystemAuthorities();
      BATON_ASSIGN_OR_RETURN(identity_, tls::LiveIdentity::Open(std::move(files)));
      BATON_ASSIGN_OR_RETURN(tls_, tls::GrpcTls::Make(*identity_, refusals_));
      BATON_ASSIGN_OR_RETURN(const net::HostPort where, net::ParseHostPort(target_));
      credentials = tls_->ForClient({where.host});
    }
    stub_ = v1::Generation::NewStub(grpc::CreateChannel(target_, credentials));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Greet(const ChatOptions& options, Cancellation& stop) override {
    v1::GetModelRequest request;
    request.set_model(options.model);
    v1::ModelCard card;
    grpc::ClientContext context;
    Authorize(options, context);
    if (options.patience > Duration::zero())
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::duration_cast<std::chrono::system_clock::duration>(options.patience));
    stop.Set([&context] { context.TryCancel(); });
    const grpc::Status status = stub_->GetModel(&context, request, &card);
    stop.Set({});
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      return absl::UnavailableError(
          absl::StrFormat("gRPC %s: no answer within %g s", target_, Seconds(options.patience)));
    if (!status.ok()) return Failure(status);
    return card.name();
  }

  bool Draining(Cancellation&) override { return false; }  // the stream says so itself

  absl::StatusOr<ChatStats> Ask(const std::vector<ChatTurn>& turns, const ChatOptions& options,
                                const std::function<void(std::string_view)>& on_text, Cancellation& stop) override {
    v1::GenerateRequest request;
    request.set_model(options.model);
    for (const ChatTurn& turn : turns) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(turn.role);
      message->set_content(turn.content);
    }
    request.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
    request.mutable_sampling()->set_top_k(options.top_k);
    request.mutable_sampling()->set_top_p(static_cast<float>(options.top_p));
    request.mutable_sampling()->set_min_p(static_cast<float>(options.min_p));
    if (options.max_tokens > 0) request.mutable_sampling()->set_max_tokens(options.max_tokens);
    if (options.seed >= 0) request.mutable_sampling()->set_seed(static_cast<uint64_t>(options.seed));

    grpc::ClientContext context;
    Authorize(options, context);
    stop.Set([&context] { context.TryCancel(); });
    ChatStats stats;
    const TimePoint start = clock_.Now();
    std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> reader = stub_->Generate(&context, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      if (!chunk.text().empty()) {
        if (stats.first_token_ms == 0) stats.first_token_ms = Milliseconds(clock_.Now() - start);
        on_text(chunk.text());
      }
      stats.cut = stats.cut || chunk.finish_reason() == v1::FINISH_REASON_LENGTH;
      if (chunk.has_usage()) {
        stats.prompt_tokens = chunk.usage().prompt_tokens();
        stats.cached_tokens = chunk.usage().cached_tokens();
        stats.completion_tokens = chunk.usage().completion_tokens();
      }
    }
    const grpc::Status status = reader->Finish();
    stop.Set({});
    const auto trailer = context.GetServerTrailingMetadata();
    if (const auto found = trailer.find("baton-timings-bin"); found != trailer.end()) {
      v1::StageTimings timings;
      if (timings.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())))
        stats.stages = StagesOfMessage(timings);
    }
    stats.total_ms = Milliseconds(clock_.Now() - start);
    if (!status.ok()) return Failure(status);
    return stats;
  }

 private:
  static void Authorize(const ChatOptions& options, grpc::ClientContext& context) {
    if (!options.api_key.empty()) context.AddMetadata("authorization", StrCat("Bearer ", options.api_key));
  }

  absl::Status Failure(const grpc::Status& status) const {
    const std::string text = StrCat("gRPC ", target_, ": ", tls::ExplainGrpc(status.error_message(), tls_ != nullptr));
    switch (status.error_code()) {
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::UNAUTHENTICATED:
      case grpc::StatusCode::PERMISSION_DENIED: return absl::FailedPreconditionError(text);
      case grpc::StatusCode::RESOURCE_EXHAUSTED: return absl::UnavailableError(text);
      case grpc::StatusCode::UNAVAILABLE:
        return absl::UnavailableError(StrCat(text, " (`baton serve MODEL` starts a cluster)"));
      default: return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
    }
  }

  std::string target_;
  SteadyClock clock_;
  tls::Refusals refusals_{clock_};
  std::unique_ptr<tls::LiveIdentity> identity_;  // null: no TLS
  std::unique_ptr<tls::GrpcTls> tls_;            // of identity_
  std::unique_ptr<v1::Generation::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatClient>> MakeGrpcChatClient(const std::string& target, const tls::TlsFiles& files) {
  constexpr std::string_view kPlain = "grpc://", kTls = "grpcs://";
  const bool plain = target.starts_with(kPlain), tls = target.starts_with(kTls);
  if (plain && files.given()) {
    return absl::InvalidArgumentError(
        StrCat("--grpc ", target, " is plain text, and --tls-cert, --tls-key and --tls-ca are for grpcs://"));
  }
  const std::string address = target.substr(plain ? kPlain.size() : tls ? kTls.size() : 0);
  const auto where = net::ParseHostPort(address);
  if (!where.ok()) return absl::InvalidArgumentError(StrCat("--grpc: ", where.status().message()));
  auto client = std::make_unique<GrpcChatClient>(address);
  BATON_RETURN_IF_ERROR(client->Connect(tls || files.given(), files));
  return client;
}

}  // namespace baton::cli
