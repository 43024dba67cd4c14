// CanaryBook: which worker is proven by a canary, a tiny request that goes through it end to end before others do.
// Sans-IO: what serves comes in, canaries to run and what is to be shown of a worker go out; no clock, no thread.
//
//   kDue ──a canary begins──► kRuns ──its answer──► kProven, for the life of this process
//    ▲                          └──no answer──► kFailed ──after a pause──► kRuns
//    └── another process, or it was away before it was proven
//
// A worker of role `both` is asked alone. One that decodes is asked through a prefill worker, and the other way round:
// prefill, transfer and decode in one. Each takes part in one that succeeds, never each pair; the other half of the
// first is proven with it. Where no prefill worker serves that speaks its KV protocol, who decodes computes the prompt
// itself, as it will have to. A canary that fails says nothing against the half that another one has proven.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/protocol_versions.h"
#include "router/request_types.h"

namespace baton::router {

/// Through these two, or through `decode` alone. Answer with Ended.
struct RunCanary {
  uint64_t number = 0;
  std::optional<int32_t> prefill;  ///< slots
  int32_t decode = 0;
};
/// What views of this worker show from now on.
struct ShowProof {
  int32_t slot = 0;
  std::string unproven;             ///< why it takes no requests yet; empty: it takes them
  std::optional<TimePoint> next{};  ///< then its canary runs again
};
/// Call Serve at this time at the latest; replaces the one before.
struct ArmCanaries {
  TimePoint at;
};
using CanaryAction = std::variant<RunCanary, ShowProof, ArmCanaries>;

/// Not thread-safe.
class CanaryBook {
 public:
  static constexpr size_t kMostAtOnce = 8;
  static constexpr Duration kPauseMin = std::chrono::milliseconds(250), kPauseMax = std::chrono::seconds(10);

  /// A worker that is connected and takes requests, but for its canary.
  struct Member {
    int32_t slot = 0;
    WorkerRole role = WorkerRole::kUnknown;
    std::string name, incarnation, numerics;
    ProtocolVersions kv_protocol = kKvProtocolUnnamed;
  };

  // ---- events
  /// All of them; ascending slots.
  void Serve(absl::Span<const Member> serving, TimePoint now);
  void Ended(uint64_t number, const absl::Status& status, TimePoint now);
  /// The slot is another's from now on.
  void Forget(int32_t slot) { workers_.erase(slot); }

  std::vector<CanaryAction> TakeActions();
  bool proven(int32_t slot) const;
  size_t running() const { return canaries_.size(); }

 private:
  enum class State : uint8_t { kDue, kRuns, kProven, kFailed };
  struct Worker {
    Member member;
    State state = State::kDue;
    bool serves = false, served = false;  ///< by the latest Serve, and by the one before
    uint64_t canary = 0;                  ///< the first that runs, of kRuns
    int32_t failures = 0, canaries = 0;
    TimePoint due{};                       ///< of kFailed
    std::optional<int32_t> failed_with{};  ///< the last one's other half
    std::string shown;
  };
  struct Canary {
    std::optional<int32_t> prefill;
    int32_t decode = 0;
    std::map<int32_t, std::string> incarnations;  ///< by slot, at its start
  };

  bool Begin(Worker& worker);
  Worker* OtherHalf(const Worker& worker);
  std::string Through(const Canary& canary) const;
  void Show(Worker& worker, std::string unproven, std::optional<TimePoint> next = {});
  void Failed(Worker& worker, const Canary& canary, const std::string& why, TimePoint now);

  std::map<int32_t, Worker> workers_;    ///< by slot
  std::map<uint64_t, Canary> canaries_;  ///< that run
  uint64_t last_canary_ = 0;
  std::vector<CanaryAction> actions_;
};

}  // namespace baton::router
