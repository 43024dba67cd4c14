// RequestTrail: the marks that a request leaves as it passes its stages, each of them an event. It has ids, names,
// numbers and times; never a word of a prompt or an answer. Belongs to its request's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "router/fleet/workers.h"
#include "router/json_writer.h"
#include "router/request_types.h"

namespace baton::router {

class EventStream;

/// A request as the once-a-second state shows it. Guarded by the stream.
struct LiveRequest {
  std::string id, stage = "received", worker, prefill_worker;
  TimePoint arrived, stage_since;
  int64_t prompt_tokens = 0, tokens = 0;
};

/// How a request ended.
struct TrailEnd {
  const char* reason = "stop";  ///< "stop", "length", "abort", "error", "refused"
  std::string error;            ///< why; empty: none
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  StageTimings timings;
  AnswerTimes times;
  uint32_t attempts = 0, migrations = 0;
};

class RequestTrail {
 public:
  /// Made by EventStream::Begin. `stream` outlives the trail.
  RequestTrail(EventStream& stream, std::string id, TimePoint arrived);
  /// A request that nobody ended was left by its client.
  ~RequestTrail();
  RequestTrail(const RequestTrail&) = delete;

  /// The options of the choice that comes, as JSON; empty: nobody looks.
  std::string Why(const TokenizedRequest& generation) const;

  void Tokenized(const TokenizedRequest& generation);
  /// `why`: as Why gave it, before the choice.
  void Placed(const RoutedTo& place, const std::string& worker, const std::string& prefill_worker, uint32_t attempt,
              const std::string& why);
  void Waits(const std::string& cause);  ///< no worker can take it now
  void Lost(const std::string& worker, const std::string& cause);
  void Reserving(const std::string& worker);
  void Reserved(uint32_t cached_tokens);
  void Prefill(const std::string& worker);
  void Prefilled(const StageTimings& timings);
  /// The rest of `tokens` tokens' KV is on its way.
  void Transfer(const KvPath& path, int64_t tokens);
  void Attached(const std::string& worker);
  void FirstToken();
  /// Of the whole answer so far.
  void Tokens(int64_t tokens);
  void End(const TrailEnd& end);

 private:
  friend class EventStream;
  using Fields = std::function<void(JsonWriter&)>;
  void Mark(const char* stage, const Fields& fields = {});

  EventStream& stream_;
  LiveRequest live_;  // guarded by the stream
  std::vector<std::pair<const char*, double>> marks_;
  TimePoint last_tick_{};
  int64_t ticked_tokens_ = 0;
  int64_t kv_bytes_ = 0;
  KvPath path_;
  bool ended_ = false;  // written under the stream's lock, by this thread alone
};

}  // namespace baton::router
