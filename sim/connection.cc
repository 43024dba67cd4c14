#include "sim/connection.h"

#include <algorithm>
#include <utility>

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr auto kUserTimeout = seconds(10);  ///< what is sent and never acknowledged ends the connection (gRPC's)

}  // namespace

Connection::Connection(Cable& cable)
    : cable_(cable), worker_life_(cable.worker.life()), router_life_(cable.router.life()) {
  silent_ = cable.worker.host_gone();
}

std::shared_ptr<Call> Connection::Begin() {
  std::erase_if(calls_, [](const std::shared_ptr<Call>& call) { return call->over(); });
  auto call = std::make_shared<Call>(shared_from_this());
  calls_.push_back(call);
  return call;
}

void Connection::Carry(Side to, TimePoint& order, std::function<void()> deliver) {
  Timeline& time = cable_.plant.time;
  TimePoint at = std::max(time.Now() + time.Between(microseconds(50), microseconds(800)), cable_.open_at);
  if (cable_.plant.faults_on && time.Chance(cable_.plant.scenario.late)) {
    ++cable_.plant.faults.late;
    at += time.Between(milliseconds(1), milliseconds(300));
  }
  at = order = std::max(at, order + microseconds(1));
  if (to == Side::kWorker && silent_ && !std::exchange(waits_for_answer_, true)) {
    time.After(kUserTimeout, [self = shared_from_this()] { self->Break(); });
  }
  time.At(at, [self = shared_from_this(), to, deliver = std::move(deliver)] {
    if (!self->Passes(to)) return;
    Process& there = to == Side::kRouter ? self->cable_.router : static_cast<Process&>(self->cable_.worker);
    there.Post(Duration::zero(), deliver);
  });
}

bool Connection::Passes(Side to) {
  if (broken_) return false;
  const Process& there = to == Side::kRouter ? cable_.router : static_cast<const Process&>(cable_.worker);
  const bool same = there.alive() && there.life() == (to == Side::kRouter ? router_life_ : worker_life_);
  if (same && !silent_) return true;
  if (!cable_.worker.host_gone() && !same) Break();  // its machine knows nothing of this connection
  return false;
}

void Connection::Break() {
  if (std::exchange(broken_, true)) return;
  Timeline& time = cable_.plant.time;
  time.After(time.Between(microseconds(100), milliseconds(20)), [self = shared_from_this()] { self->TellRouter(); });
  time.After(time.Between(microseconds(100), milliseconds(20)), [self = shared_from_this()] { self->TellWorker(); });
}

void Connection::TellRouter() {
  if (cable_.router.life() != router_life_ || !cable_.router.alive()) return;
  cable_.router.Post(Duration::zero(), [self = shared_from_this()] {
    self->known_broken_ = true;
    Timeline& time = self->cable_.plant.time;
    for (const std::shared_ptr<Call>& call : self->calls_) {
      const absl::Status why = time.Below(8) == 0 ? absl::UnknownError("Stream removed")
                                                  : absl::UnavailableError("the connection is broken");
      self->cable_.router.Post(time.Between(Duration::zero(), milliseconds(2)), [call, why] { call->EndHere(why); });
    }
  });
}

void Connection::TellWorker() {
  if (cable_.worker.life() != worker_life_ || !cable_.worker.alive()) return;
  Timeline& time = cable_.plant.time;
  for (const std::shared_ptr<Call>& call : calls_) {
    cable_.worker.Post(time.Between(Duration::zero(), milliseconds(2)), [call] { call->EndThere(); });
  }
}

void Connection::CloseByRouter() {
  known_broken_ = true;
  if (std::exchange(broken_, true) || silent_) return;
  Timeline& time = cable_.plant.time;
  time.After(time.Between(microseconds(100), milliseconds(20)), [self = shared_from_this()] { self->TellWorker(); });
}

// ---- one call

void Call::Open(std::function<void(WorkerNode&, const std::shared_ptr<Call>&)> serve) {
  connection_->Carry(Connection::Side::kWorker, up_order_, [self = shared_from_this(), serve = std::move(serve)] {
    if (!self->ended_there_) serve(self->connection_->cable_.worker, self);
  });
}

void Call::SendUp(std::string bytes) {
  if (ended_here_) return;
  connection_->Carry(Connection::Side::kWorker, up_order_, [self = shared_from_this(), bytes = std::move(bytes)] {
    if (const auto take = self->at_message; take && !self->ended_there_) take(bytes);
  });
}

void Call::Cancel() {
  if (ended_here_) return;
  Timeline& time = connection_->cable_.plant.time;
  const Duration most = time.Below(4) == 0 ? Duration(milliseconds(1000)) : Duration(milliseconds(2));
  connection_->cable_.router.Post(time.Between(microseconds(20), most), [self = shared_from_this()] {
    self->EndHere(absl::CancelledError("cancelled by this router"));
  });
  connection_->Carry(Connection::Side::kWorker, up_order_, [self = shared_from_this()] { self->EndThere(); });
}

void Call::EndHere(const absl::Status& why) {
  if (std::exchange(ended_here_, true)) return;
  const auto end = std::exchange(on_end, nullptr);
  on_message = nullptr;
  if (end) end(why);
}

void Call::SendDown(std::string bytes) {
  if (ended_there_) return;
  connection_->Carry(Connection::Side::kRouter, down_order_, [self = shared_from_this(), bytes = std::move(bytes)] {
    if (const auto take = self->on_message; take && !self->ended_here_) take(bytes);
  });
}

void Call::Finish(const absl::Status& status) {
  if (ended_there_) return;
  connection_->Carry(Connection::Side::kRouter, down_order_,
                     [self = shared_from_this(), status] { self->EndHere(status); });
  connection_->cable_.worker.Post(microseconds(20), [self = shared_from_this()] { self->EndThere(); });
}

void Call::EndThere() {
  if (std::exchange(ended_there_, true)) return;
  const auto end = std::exchange(at_end, nullptr);
  at_message = nullptr;
  if (end) end();
}

}  // namespace baton::sim
