// GenerateStream: one Generate call being answered. Lives on one loop; every method is called on its thread.
// Include only from .cc files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/generation.pb.h"
#include "router/grpc/stream_writer.h"
#include "router/request/request_service.h"

namespace baton::router {

using GenerateWriter = StreamWriter<v1::GenerateChunk>;

class GenerateStream final : public AnswerSink, public std::enable_shared_from_this<GenerateStream> {
 public:
  struct Options {
    std::string public_id;  ///< request_id of every chunk
    bool return_token_ids = false;
    bool echo = false;
    std::string echo_text;  ///< the prompt's text, if it came as text
    /// Called with gRPC's name of the client when its call is ended because it took nothing. Outlives the stream.
    const std::function<void(const std::string& peer)>* slow_reader = nullptr;
  };
  /// `context` lives until the stream is finished.
  GenerateStream(RequestService& service, EventLoop& loop, grpc::CallbackServerContext* context,
                 std::shared_ptr<GenerateWriter> stream, Options options);

  void Submit(RequestInput input);
  /// The client left, or its deadline is over.
  void Cancelled();
  void Drained();

  void OnAdmitted(const TokenizedRequest& generation, int64_t cached_tokens) override;
  void OnPromptLogprobs(std::vector<PositionLogprobs> positions) override;
  void OnDelta(ChoiceDelta&& delta, const RequestUsage& so_far) override;
  void OnChoiceEnd(const ChoiceFinish& finish) override;
  void OnDone(const RequestSummary& summary) override;
  void OnFailed(const ApiError& error) override;
  size_t UnsentBytes() const override { return stream_->unsent_bytes(); }
  uint64_t TakenBytes() const override { return stream_->taken_bytes(); }

 private:
  v1::GenerateChunk Chunk(uint32_t index);
  void Write(v1::GenerateChunk chunk);
  void WatchClient();
  void CheckClient();

  RequestService& service_;
  EventLoop& loop_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<GenerateWriter> stream_;
  const Options options_;
  std::shared_ptr<RequestHandle> handle_;
  std::vector<PositionLogprobs> prompt_logprobs_;  // for the first chunk
  std::optional<ChoiceFinish> held_finish_;        // written when it is known whether it is the last chunk
  RequestUsage usage_;
  std::unique_ptr<EventLoopTimer> slow_;  // armed while something is unsent
  uint64_t taken_ = 0;                    // when it was armed
  bool watched_ = false;
  bool over_ = false;
};

/// The code and text of an error as gRPC's.
grpc::Status ToGrpc(const ApiError& error);

}  // namespace baton::router
