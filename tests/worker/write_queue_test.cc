// Every (state, event) pair of a stream's write side, as one table. The reactor dies where gRPC would: a write while
// one is in flight or after Finish, Finish twice, anything after Detach.
#include "worker/relay/write_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/check.h"
#include "proto/worker.pb.h"
#include "tests/state_table.h"

namespace baton::worker {
namespace {

class StrictReactor {
 public:
  void StartWrite(const v1::RelayDown* message) {
    BATON_CHECK(!writing && !ended && !gone, "a write that gRPC does not allow");
    writing = true, log += "Write" + std::to_string(message->step()) + " ";
  }
  void Finish(const grpc::Status& status) {
    BATON_CHECK(!ended && !gone, "a Finish that gRPC does not allow");
    ended = true, log += "Finish(" + std::to_string(status.error_code()) + ") ";
  }
  void Cancel() {
    BATON_CHECK(writing && !gone);
    log += "Cancel ";
  }
  bool writing = false, ended = false, gone = false;
  std::string log;
};

class QueueWorld {
 public:
  void Push(uint64_t number, size_t bytes = 0) {
    v1::RelayDown message;
    message.set_step(number);
    if (bytes > 0) message.add_entries()->set_prompt_logprobs(std::string(bytes, 'x'));
    queue.Push(std::move(message));
  }
  void WriteDone(bool ok = true) {
    BATON_CHECK(reactor.writing);
    reactor.writing = false;
    queue.OnWriteDone(ok);
  }
  void Detach() {
    BATON_CHECK(reactor.ended, "gRPC calls OnDone after Finish");
    queue.Detach();
    reactor.gone = true;
  }
  StrictReactor reactor;
  WriteQueue<StrictReactor, v1::RelayDown> queue{&reactor};
};

constexpr std::array kQueueStates = {"idle",   "writing", "two queued",        "last set",
                                     "ending", "ended",   "ended, one unsent", "gone, one unsent"};

void EnterQueue(QueueWorld& w, const std::string& state) {
  if (state == "idle") return;
  if (state == "ended") return w.queue.Finish(grpc::Status::OK);
  w.Push(1);
  if (state == "writing") return;
  if (state == "last set") return w.queue.FinishAfterQueue(grpc::Status::OK);
  w.Push(2);
  if (state == "two queued") return;
  w.queue.Finish(grpc::Status::CANCELLED);
  if (state == "ending") return;
  w.WriteDone();
  if (state == "gone, one unsent") w.Detach();
}

std::string StateName(const QueueWorld& w) {
  if (w.reactor.gone) return "gone";
  if (w.reactor.ended) return "ended";
  return w.reactor.writing ? "writing" : "idle";
}

using ApplyToQueue = std::function<void(QueueWorld&)>;
const std::vector<std::pair<std::string, ApplyToQueue>>& QueueEvents() {
  static const std::vector<std::pair<std::string, ApplyToQueue>> events = {
      {"Push", [](QueueWorld& w) { w.Push(3); }},
      {"Push, far too much", [](QueueWorld& w) { w.Push(3, kMaxQueuedBytes + 1); }},
      {"Written", [](QueueWorld& w) { w.WriteDone(); }},
      {"Written, failed", [](QueueWorld& w) { w.WriteDone(false); }},
      {"All written",
       [](QueueWorld& w) {
         while (w.reactor.writing) w.WriteDone();
       }},
      {"FinishAfterQueue", [](QueueWorld& w) { w.queue.FinishAfterQueue(grpc::Status::OK); }},
      {"FinishAfterQueue, all written",
       [](QueueWorld& w) {
         w.queue.FinishAfterQueue(grpc::Status::OK);
         while (w.reactor.writing) w.WriteDone();
       }},
      {"Finish", [](QueueWorld& w) { w.queue.Finish(grpc::Status(grpc::StatusCode::ABORTED, "")); }},
      {"Cut off", [](QueueWorld& w) { w.queue.CutOff(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "")); }},
      {"Cut off, the write fails",
       [](QueueWorld& w) {
         w.queue.CutOff(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, ""));
         if (w.reactor.writing) w.WriteDone(false);
         BATON_CHECK(w.reactor.gone || w.queue.unread().bytes == 0);
       }},
      {"Read on", [](QueueWorld& w) { w.queue.IfOpen([](StrictReactor& r) { r.log += "Read "; }); }},
      {"Finish, done, told more",
       [](QueueWorld& w) {
         w.queue.Finish(grpc::Status::OK);
         if (w.reactor.writing) w.WriteDone();
         if (!w.reactor.gone) w.Detach();
         w.Push(3), w.queue.Finish(grpc::Status::OK), w.queue.FinishAfterQueue(grpc::Status::OK);
       }},
  };
  return events;
}

// event | one cell per state. "-": gRPC reports no write that was not begun
constexpr const char* kQueueTable = R"(
Push                          | →writing Write3 | = | = | = | = | = | = | =
Push, far too much            | →ended Finish(8) | Cancel | Cancel | Cancel | = | = | = | =
Written                       | - | →idle | Write2 | →ended Finish(0) | →ended Finish(1) | - | - | -
Written, failed               | - | →ended Finish(1) | →ended Finish(1) | →ended Finish(1) | →ended Finish(1) | - | - | -
All written                   | = | →idle | →idle Write2 | →ended Finish(0) | →ended Finish(1) | = | = | =
FinishAfterQueue              | →ended Finish(0) | = | = | = | = | = | = | =
FinishAfterQueue, all written | →ended Finish(0) | →ended Finish(0) | →ended Write2 Finish(0) | →ended Finish(0) | →ended Finish(1) | = | = | =
Finish                        | →ended Finish(10) | = | = | = | = | = | = | =
Cut off                       | →ended Finish(8) | Cancel | Cancel | Cancel | Cancel | = | = | =
Cut off, the write fails      | →ended Finish(8) | →ended Cancel Finish(8) | →ended Cancel Finish(8) | →ended Cancel Finish(8) | →ended Cancel Finish(1) | = | = | =
Read on                       | Read | Read | Read | Read | = | = | = | =
Finish, done, told more       | →gone Finish(0) | →gone Finish(0) | →gone Finish(0) | →gone Finish(0) | →gone Finish(1) | →gone | →gone | =
)";

TEST(WriteQueueTable, EveryEventInEveryStateKeepsTheRulesOfGrpc) {
  ExpectEveryCell(kQueueTable, kQueueStates, QueueEvents(),
                  [](const std::string& event, const std::string& state, const ApplyToQueue& apply) {
                    QueueWorld w;
                    EnterQueue(w, state);
                    if ((event == "Written" || event == "Written, failed") && !w.reactor.writing)
                      return std::string("-");
                    const std::string before = StateName(w);
                    w.reactor.log.clear();
                    apply(w);
                    std::string done = w.reactor.log;
                    if (!done.empty()) done.pop_back();
                    return CellOf(before, StateName(w), done);
                  });
}

}  // namespace
}  // namespace baton::worker
