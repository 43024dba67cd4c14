// CompletionAnswer: a request for a chat's or texts' completion being answered, streamed or whole, in the shape of any
// API. One sink per prompt feeds it. Lives on the exchange's loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/dialect/call_reader.h"
#include "router/http/answer_format.h"
#include "router/http/hidden_thoughts.h"
#include "router/http/http_types.h"
#include "router/http/json_request.h"
#include "router/http/text_positions.h"
#include "router/request/request_service.h"

namespace baton::router {

class CompletionAnswer : public std::enable_shared_from_this<CompletionAnswer> {
 public:
  struct Options {
    std::string fingerprint;
    int32_t sse_ping_ms = 15000;
    int32_t stream_interval = 1;
    std::function<void(int status)> done;  ///< once, with the answer's HTTP status
  };
  CompletionAnswer(RequestService& service, std::shared_ptr<HttpExchange> exchange, CompletionRequest request,
                   std::unique_ptr<AnswerFormat> format, HttpHeaders headers, Options options);

  void Start();

 private:
  class PromptSink;
  struct Choice {
    ChoicePart part;  ///< whole: everything; streamed: what is gathered for the next chunk
    bool ended = false;
    bool prompt_shown = false;               ///< its tokens, in a streamed text
    std::unique_ptr<ToolCallReader> reader;  ///< null: the choice is text
    TextPositions text_positions;            ///< of an answer that shows the logprobs of its text alone
    HiddenThoughts hidden;                   ///< of an answer that does not show its thoughts
  };
  struct PromptState {
    std::shared_ptr<RequestHandle> handle;
    std::vector<int32_t> ids;  ///< of the prompt, where the answer shows them
    std::optional<std::vector<PositionLogprobs>> logprobs;
    RequestUsage usage;
    std::string echo;
    bool done = false;
  };

  void Admitted(size_t prompt, const TokenizedRequest& generation, int64_t cached_tokens);
  void PromptLogprobs(size_t prompt, std::vector<PositionLogprobs> positions);
  void Delta(size_t prompt, ChoiceDelta&& delta, const RequestUsage& so_far);
  void ChoiceEnded(size_t prompt, const ChoiceFinish& finish);
  void Done(size_t prompt, const RequestSummary& summary);
  void Failed(ApiError error);

  /// How this model writes calls by itself; null: nobody knows.
  const CallForm* Form() const;
  std::unique_ptr<ToolCallReader> MakeReader() const;
  /// Whether the stop string that ended a choice is the mark behind the model's own calls.
  bool IsCloseOfCalls(const std::optional<std::string>& stop) const;
  /// Arguments of calls by the model's own choice fit the schemas of strict functions. An error: they cannot.
  std::optional<ApiError> HoldStrictCalls();
  /// Of an answer whose text alone has logprobs: text, calls and logprobs of the delta. `thoughts`: tokens of all.
  void TakeEachToken(Choice& choice, ChoiceDelta&& delta, size_t thoughts);
  /// Moves calls from the part's text to its calls.
  void TakeCalls(ChoicePart& part, ToolCallReader::Piece piece);
  void BeginStream();
  void Write(std::string_view bytes);
  void Flush(Choice& choice, bool at_end);
  void WriteHeldFinish(bool last);
  void Ping();
  void FinishWhole();
  void Cancel();
  AnswerTail ChunkTail() const;
  /// Of the next chunk of `choice`.
  AnswerTail TailOf(Choice& choice);
  RequestUsage TotalUsage() const;
  void End(int status);

  RequestService& service_;
  std::shared_ptr<HttpExchange> exchange_;
  CompletionRequest request_;  ///< its prompts only where they are echoed
  const std::unique_ptr<AnswerFormat> format_;
  HttpHeaders headers_;
  const Options options_;
  const uint32_t n_;
  std::vector<Choice> choices_;       // [prompts × n]
  std::vector<PromptState> prompts_;  // [prompts]
  StageTimings timings_;
  AnswerTimes times_;
  bool calls_fit_ = false;  ///< by a grammar
  bool mixed_numerics_ = false;
  std::optional<uint64_t> seed_;
  std::optional<std::pair<uint32_t, ChoiceFinish>> held_finish_;  // written when it is known whether it is the last
  std::unique_ptr<EventLoopTimer> ping_;
  TimePoint last_write_{};
  bool streaming_ = false, over_ = false;
};

}  // namespace baton::router
