#include "router/grpc/generate_stream.h"

#include <utility>

#include "router/grpc/generate_codec.h"

namespace baton::router {

grpc::Status ToGrpc(const ApiError& error) {
  return grpc::Status(static_cast<grpc::StatusCode>(error.grpc_code), error.message);
}

GenerateStream::GenerateStream(RequestService& service, EventLoop& loop, grpc::CallbackServerContext* context,
                               std::shared_ptr<GenerateWriter> stream, Options options)
    : service_(service),
      loop_(loop),
      context_(context),
      stream_(std::move(stream)),
      options_(std::move(options)),
      slow_(loop.MakeTimer()) {}

void GenerateStream::Submit(RequestInput input) {
  if (over_) return;
  handle_ = service_.Submit(loop_, std::move(input), shared_from_this());
  if (over_) handle_.reset();  // refused at once
}

void GenerateStream::Cancelled() {
  if (std::exchange(over_, true)) return;
  if (auto handle = std::exchange(handle_, nullptr)) handle->ClientGone();
  stream_->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client left"));
}

void GenerateStream::Drained() {
  if (handle_) handle_->OutputDrained();
}

v1::GenerateChunk GenerateStream::Chunk(uint32_t index) {
  v1::GenerateChunk chunk;
  chunk.set_request_id(options_.public_id);
  chunk.set_index(index);
  return chunk;
}

void GenerateStream::Write(v1::GenerateChunk chunk) {
  for (const PositionLogprobs& p : std::exchange(prompt_logprobs_, {})) EncodeLogprobs(p, chunk.add_prompt_logprobs());
  EncodeUsage(usage_, chunk.mutable_usage());
  stream_->Write(std::move(chunk));
  if (!watched_) WatchClient();
}

// A client that takes no message for the write timeout is dropped, also when its answer is complete.
void GenerateStream::WatchClient() {
  watched_ = true;
  taken_ = stream_->taken();
  const CallServices& s = service_.services();
  slow_->ArmAt(s.clock.Now() + std::chrono::milliseconds(s.config.write_timeout_ms), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->CheckClient();
  });
}

void GenerateStream::CheckClient() {
  watched_ = false;
  if (stream_->unsent_bytes() == 0) return;
  if (stream_->taken() != taken_) return WatchClient();
  const std::string peer = stream_->Abandon();
  if (!peer.empty()) (*options_.slow_reader)(peer);
}

void GenerateStream::OnAdmitted(const TokenizedRequest& generation, int64_t cached_tokens) {
  usage_ = RequestUsage{static_cast<int64_t>(generation.prompt.size()), 0, cached_tokens};
  if (over_ || !options_.echo) return;
  const Tokenizer& tokenizer = *service_.services().model.tokenizer;
  const std::string text = options_.echo_text.empty()
                               ? tokenizer.Decode(generation.prompt, generation.skip_special_tokens)
                               : options_.echo_text;
  for (int32_t i = 0; i < generation.sampling.n; ++i) {
    v1::GenerateChunk chunk = Chunk(static_cast<uint32_t>(i));
    chunk.set_text(text);
    Write(std::move(chunk));
  }
}

void GenerateStream::OnPromptLogprobs(std::vector<PositionLogprobs> positions) {
  prompt_logprobs_ = std::move(positions);
}

void GenerateStream::OnDelta(ChoiceDelta&& delta, const RequestUsage& so_far) {
  if (over_) return;
  usage_ = so_far;
  const bool shows_tokens = options_.return_token_ids || !delta.logprobs.empty();
  if (delta.text.empty() && !shows_tokens) return;
  v1::GenerateChunk chunk = Chunk(delta.index);
  chunk.set_text(std::move(delta.text));
  if (options_.return_token_ids) chunk.mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  for (const PositionLogprobs& p : delta.logprobs) EncodeLogprobs(p, chunk.add_logprobs());
  Write(std::move(chunk));
}

void GenerateStream::OnChoiceEnd(const ChoiceFinish& finish) {
  if (over_) return;
  if (held_finish_) {
    v1::GenerateChunk chunk = Chunk(held_finish_->index);
    EncodeFinish(*held_finish_, &chunk);
    Write(std::move(chunk));
  }
  held_finish_ = finish;
}

void GenerateStream::OnDone(const RequestSummary& summary) {
  if (std::exchange(over_, true)) return;
  usage_ = summary.usage;
  v1::GenerateChunk chunk = Chunk(held_finish_ ? held_finish_->index : 0);
  if (held_finish_) EncodeFinish(*held_finish_, &chunk);
  EncodeTimings(summary.timings, chunk.mutable_timings());
  if (summary.mixed_numerics) chunk.set_numerics("mixed");
  context_->AddTrailingMetadata("baton-timings-bin", chunk.timings().SerializeAsString());
  Write(std::move(chunk));
  stream_->Finish(grpc::Status::OK);
  handle_.reset();
}

void GenerateStream::OnFailed(const ApiError& error) {
  if (std::exchange(over_, true)) return;
  if (error.retry_after_ms > 0) context_->AddTrailingMetadata("retry-after-ms", std::to_string(error.retry_after_ms));
  stream_->Finish(ToGrpc(error));
  handle_.reset();
}

}  // namespace baton::router
