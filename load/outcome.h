// What became of one offered request. Times are offsets from the start of the run; nothing of it is averaged yet.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace baton::load {

/// Why a request has no whole answer.
enum class Failure : uint8_t {
  kNone,
  kConnect,    ///< nobody took the connection
  kRefused,    ///< an HTTP status other than 200, or a status of gRPC in place of an answer
  kBroken,     ///< the connection ended in the middle
  kTimeout,    ///< longer than --request-timeout-ms
  kError,      ///< an error event within the stream
  kMalformed,  ///< not the event stream of an OpenAI server
};
constexpr std::array<std::string_view, 7> kFailureNames = {"none",    "connect", "refused",  "broken",
                                                           "timeout", "error",   "malformed"};

/// The server's own account of a request ("timings" in Baton's answers), ms.
struct Stages {
  double queue_prefill = 0, prefill = 0, transfer = 0, queue_decode = 0, first_decode = 0, decode = 0;
  double router = 0, lost = 0, reserve = 0, network = 0;
  /// What passes before the first token: whoever computes the prompt draws it.
  double ToFirst() const { return router + lost + reserve + queue_prefill + prefill + network; }
  /// What a handed-over request waits for between its first token and its second; 0 where one worker does both.
  double ToSecond() const { return transfer + queue_decode + first_decode; }
};

/// What an answer said, put together from its events.
struct Answer {
  std::string text;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  bool counted = false;   ///< the server gave a usage
  bool finished = false;  ///< a finish_reason was seen
  bool done = false;      ///< [DONE] was seen
  std::optional<Stages> stages;
  std::string error;  ///< of an error event
};

struct Outcome {
  size_t index = 0;
  Duration due{};     ///< when the schedule wanted it
  Duration waited{};  ///< for a place, with a limit of requests at a time
  Duration sent{};
  Duration end{};
  std::vector<Duration> arrivals;  ///< of the chunks with text; several may have come in one read
  Answer answer;
  Failure failure = Failure::kNone;
  int http_status = 0;       ///< 0: none came, or gRPC has none
  bool unavailable = false;  ///< refused for now: HTTP 503, gRPC's UNAVAILABLE
  std::string error;

  /// How late this client was, which noticed that it was due and sent it.
  double LagMs() const { return Milliseconds(sent - due - waited); }
  bool ok() const { return failure == Failure::kNone; }
  /// Nobody is there who answers, or not yet: a connection that is not taken or ends without a word, no text in time,
  /// 503.
  bool nobody_answers() const {
    if (ok() || !arrivals.empty()) return false;
    const bool no_word = failure == Failure::kBroken && http_status == 0;
    return unavailable || no_word || failure == Failure::kConnect || failure == Failure::kTimeout;
  }
  double TtftMs() const { return arrivals.empty() ? 0 : Milliseconds(arrivals.front() - sent); }
  /// From the first chunk to the second; 0 if there is none.
  double SecondMs() const { return arrivals.size() < 2 ? 0 : Milliseconds(arrivals[1] - arrivals[0]); }
  double E2elMs() const { return Milliseconds(end - sent); }
  int64_t OutputTokens() const {
    return answer.counted ? answer.completion_tokens : static_cast<int64_t>(arrivals.size());
  }
  /// (latency − TTFT) / (tokens − 1); nullopt for an answer of one token.
  std::optional<double> TpotMs() const {
    if (OutputTokens() < 2 || arrivals.empty()) return std::nullopt;
    return Milliseconds(end - arrivals.front()) / static_cast<double>(OutputTokens() - 1);
  }
};

}  // namespace baton::load
