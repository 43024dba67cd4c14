// A connection between a router and a worker, and the calls in it, as gRPC has them over TCP. In a living connection a
// call's messages come in order and none is lost, doubled or damaged; calls overtake each other. When a connection
// breaks, both sides hear of it, each at its own time, and every call ends; when a host is gone, nobody hears anything.
// What a stopped process is sent waits for it. All times are virtual.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sim/scenario.h"
#include "sim/worker_node.h"

namespace baton::sim {

class Call;

/// The way between one router and one worker. It outlives its connections.
struct Cable {
  Process& router;
  WorkerNode& worker;
  const Plant& plant;
  TimePoint open_at{};                             ///< what is sent before arrives after it: the network is parted
  std::shared_ptr<class Connection> connection{};  ///< the router's latest
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// The worker's process is there, or its host is gone.
  explicit Connection(Cable& cable);
  /// The router may begin calls: it has not heard of a break.
  bool usable() const { return !known_broken_; }
  std::shared_ptr<Call> Begin();
  /// Reset or cut: both sides hear of it soon.
  void Break();
  /// A host vanishes: nothing arrives any more, and nobody is told.
  void GoSilent() { silent_ = true; }
  /// The simulation ends: calls are let go.
  void Forget() { calls_.clear(); }
  /// Ends every call at the worker: the router's process is gone, or has closed its channel.
  void CloseByRouter();

 private:
  friend class Call;
  enum class Side : uint8_t { kRouter, kWorker };
  /// Runs `deliver` on that side when what is sent now has arrived there, after what the same stream sent before.
  void Carry(Side to, TimePoint& order, std::function<void()> deliver);
  bool Passes(Side to);
  void TellRouter();
  void TellWorker();

  Cable& cable_;
  const uint64_t worker_life_, router_life_;
  bool broken_ = false, silent_ = false, known_broken_ = false, waits_for_answer_ = false;
  std::vector<std::shared_ptr<Call>> calls_;  ///< that have not ended on both sides
};

/// One call. Its two halves are used by their own process only; what is called back runs in a turn of that process.
class Call : public std::enable_shared_from_this<Call> {
 public:
  explicit Call(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  // ---- the router's half
  std::function<void(const std::string& bytes)> on_message;
  std::function<void(const absl::Status&)> on_end;  ///< once; nothing is called after it
  /// The first thing of a call: the worker begins to serve it.
  void Open(std::function<void(WorkerNode&, const std::shared_ptr<Call>&)> serve);
  void SendUp(std::string bytes);
  /// Ends with CANCELLED, a little later; what the worker says until then still comes.
  void Cancel();
  /// Ends with `why` unless it has ended.
  void EndHere(const absl::Status& why);
  /// Nothing is called back from now on.
  void Silence() {
    ended_here_ = true;
    on_message = nullptr;
    on_end = nullptr;
  }
  bool ended_here() const { return ended_here_; }
  bool over() const { return ended_here_ && ended_there_; }

  // ---- the worker's half
  std::string greeted;  ///< the metadata "baton-incarnation"; set before Open
  std::string router;   ///< whose session the metadata "baton-token" proves; set before Open
  std::function<void(const std::string& bytes)> at_message;
  std::function<void()> at_end;  ///< once: finished, cancelled or broken
  void SendDown(std::string bytes);
  void Finish(const absl::Status& status);
  void EndThere();

 private:
  friend class Connection;
  const std::shared_ptr<Connection> connection_;
  TimePoint up_order_{}, down_order_{};
  bool ended_here_ = false, ended_there_ = false;
};

}  // namespace baton::sim
