// TopModel: what the event stream of a router has said so far, for `baton top`. Lines of JSON in (docs/console.md);
// fields that are missing or of another type count as not said. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace baton::cli {

struct TopWorker {
  std::string name, role, state, detail, phase;
  double progress = 0;
  int64_t running = 0, waiting = 0, queued_tokens = 0;
  int64_t kv_used = 0, kv_reserved = 0, kv_cached = 0, kv_blocks = 0;
  std::optional<double> step_ms, prompt_tokens_per_s, generation_tokens_per_s;
};

struct TopLink {
  std::string from, to, transport;
  double self_test_gigabytes_per_second = 0;
  std::optional<double> bytes_per_s;
};

struct TopRequest {
  std::string id, stage, worker, prefill_worker;
  double began = 0, stage_since = 0;  ///< unix ms
  int64_t prompt_tokens = 0, tokens = 0;
};

struct TopFinished {
  TopRequest request;
  std::string reason, error;
  double ended = 0;  ///< unix ms
  double total_ms = 0, first_token_ms = 0, mean_gap_ms = 0;
  /// queue and prefill, transfer, queue and first decode, decode: as the answer's timings have them
  std::array<double, 6> stages_ms{};
};

class TopModel {
 public:
  static constexpr size_t kFinishedKept = 512;

  /// InvalidArgument: it is no event; nothing has changed then.
  absl::Status Take(std::string_view line);

  const std::string& server() const { return server_; }  ///< "MODEL  VERSION  POLICY"; empty: not greeted yet
  double time() const { return time_; }                  ///< unix ms of the latest event
  int64_t states() const { return states_; }
  int64_t lost_events() const { return lost_events_; }

  std::string status, detail;
  int64_t running = 0, max_running = 0, texts_queued = 0, recomputing = 0, requests_left_out = 0;
  std::optional<double> prompt_tokens_per_s, generation_tokens_per_s;
  std::vector<TopWorker> workers;
  std::vector<TopLink> links;

  /// Those under way, the oldest first.
  std::vector<TopRequest> Requests() const;
  const std::deque<TopFinished>& finished() const { return finished_; }  ///< oldest first

 private:
  std::string server_;
  double time_ = 0;
  int64_t states_ = 0, lost_events_ = 0;
  std::map<std::string, TopRequest> requests_;  // by id
  std::deque<TopFinished> finished_;
  friend struct TopReader;
};

}  // namespace baton::cli
