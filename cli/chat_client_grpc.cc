#include <grpcpp/grpcpp.h>

#include "cli/chat_client.h"
#include "common/clock.h"
#include "common/str_cat.h"
#include "proto/generation.grpc.pb.h"

namespace baton::cli {
namespace {

std::vector<std::pair<std::string, double>> StagesOf(const v1::StageTimings& t) {
  return {{"queue_prefill", t.queue_prefill_ms()}, {"prefill", t.prefill_ms()},           {"transfer", t.transfer_ms()},
          {"queue_decode", t.queue_decode_ms()},   {"first_decode", t.first_decode_ms()}, {"decode", t.decode_ms()}};
}

class GrpcChatClient final : public ChatClient {
 public:
  explicit GrpcChatClient(const std::string& target)
      : target_(target),
        stub_(v1::Generation::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))) {}

  absl::StatusOr<ChatStats> Ask(const std::vector<ChatTurn>& turns, const ChatOptions& options,
                                const std::function<void(std::string_view)>& on_text) override {
    v1::GenerateRequest request;
    request.set_model(options.model);
    for (const ChatTurn& turn : turns) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(turn.role);
      message->set_content(turn.content);
    }
    if (options.temperature >= 0) request.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
    if (options.max_tokens > 0) request.mutable_sampling()->set_max_tokens(options.max_tokens);
    if (options.seed >= 0) request.mutable_sampling()->set_seed(static_cast<uint64_t>(options.seed));

    grpc::ClientContext context;
    if (!options.api_key.empty()) context.AddMetadata("authorization", StrCat("Bearer ", options.api_key));
    ChatStats stats;
    const TimePoint start = clock_.Now();
    std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> reader = stub_->Generate(&context, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      if (!chunk.text().empty()) {
        if (stats.first_token_ms == 0) stats.first_token_ms = Milliseconds(clock_.Now() - start);
        on_text(chunk.text());
      }
      if (chunk.has_usage()) {
        stats.prompt_tokens = chunk.usage().prompt_tokens();
        stats.cached_tokens = chunk.usage().cached_tokens();
        stats.completion_tokens = chunk.usage().completion_tokens();
      }
    }
    const grpc::Status status = reader->Finish();
    const auto trailer = context.GetServerTrailingMetadata();
    if (const auto found = trailer.find("baton-timings-bin"); found != trailer.end()) {
      v1::StageTimings timings;
      if (timings.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())))
        stats.stages = StagesOf(timings);
    }
    stats.total_ms = Milliseconds(clock_.Now() - start);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          StrCat("gRPC ", target_, ": ", status.error_message()));
    }
    return stats;
  }

 private:
  std::string target_;
  std::unique_ptr<v1::Generation::Stub> stub_;
  SteadyClock clock_;
};

}  // namespace

std::unique_ptr<ChatClient> MakeGrpcChatClient(const std::string& target) {
  return std::make_unique<GrpcChatClient>(target);
}

}  // namespace baton::cli
