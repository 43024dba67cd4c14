// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "load/run.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>

#include "common/str_cat.h"
#include "load/real_time.h"

namespace baton::load {
namespace {

namespace asio = boost::asio;

class Offering {
 public:
  Offering(const Run& run, const Clock& clock)
      : run_(run),
        clock_(clock),
        client_(run.asker(clock)),
        timer_(io_),
        fault_timer_(io_),
        stop_(io_),
        faults_(run.faults) {
    result_.outcomes.resize(run.prompts.size());
    over_.resize(run.prompts.size());
    for (size_t i = 0; i < run.prompts.size(); ++i) result_.outcomes[i].index = i;
    std::ranges::stable_sort(faults_, {}, &Fault::at);
  }

  RunResult Execute(TimePoint start) {
    const RealTime real_time(run_.real_time);
    start_ = start;
    result_.real_time = real_time.granted();
    result_.started_at_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    client_->Begin(start, run_.until);
    asio::co_spawn(io_, Offer(), asio::detached);
    asio::co_spawn(io_, Harm(), asio::detached);
    if (run_.stop_fd >= 0) asio::co_spawn(io_, AwaitStop(), asio::detached);
    io_.run();
    if (result_.interrupted) LeaveOut();
    for (const Outcome& one : result_.outcomes) result_.duration = std::max(result_.duration, one.end);
    result_.connections = client_->connections();
    return std::move(result_);
  }

 private:
  struct Waiting {
    size_t index;
    Duration since;
  };

  Duration Since() const { return clock_.Now() - start_; }

  asio::awaitable<void> Offer() {
    for (size_t i = 0; i < run_.prompts.size(); ++i) {
      if (Since() < run_.due[i]) {
        boost::system::error_code error;
        timer_.expires_at(start_ + run_.due[i]);
        co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      }
      Outcome& outcome = result_.outcomes[i];
      outcome.due = run_.due[i];
      waiting_.push_back({i, Since()});
      SendWaiting();
    }
  }

  asio::awaitable<void> Harm() {
    for (const Fault& fault : faults_) {
      boost::system::error_code error;
      fault_timer_.expires_at(start_ + fault.at);
      co_await fault_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      if (error || ended_ == run_.prompts.size()) co_return;  // the run is over
      const absl::Status done = fault.act();
      result_.faults.push_back({Since(), fault.what, std::string(done.message())});
    }
  }

  asio::awaitable<void> AwaitStop() {
    if (ended_ == run_.prompts.size()) co_return;  // none of them had to wait for anything
    boost::system::error_code error;
    stop_.assign(run_.stop_fd);
    co_await stop_.async_wait(asio::posix::stream_descriptor::wait_read,
                              asio::redirect_error(asio::use_awaitable, error));
    stop_.release();
    if (error || ended_ == run_.prompts.size()) co_return;
    result_.interrupted = true;
    client_->Abandon();
    io_.stop();
  }

  // What has no end is in no figure.
  void LeaveOut() {
    result_.unfinished = running_;
    std::erase_if(result_.outcomes, [this](const Outcome& one) { return !over_[one.index]; });
    result_.unsent = static_cast<int64_t>(run_.prompts.size() - result_.outcomes.size()) - result_.unfinished;
  }

  void SendWaiting() {
    while (!waiting_.empty() && (run_.most_at_a_time == 0 || running_ < run_.most_at_a_time)) {
      const auto [index, since] = waiting_.front();
      waiting_.pop_front();
      result_.outcomes[index].waited = Since() - since;
      ++running_;
      result_.most_at_a_time = std::max(result_.most_at_a_time, running_);
      asio::co_spawn(io_, One(index), asio::detached);
    }
  }

  asio::awaitable<void> One(size_t index) {
    Outcome& outcome = result_.outcomes[index];
    co_await client_->Ask(run_.prompts[index], index, StrCat(run_.request_id_prefix, index), outcome);
    --running_;
    ++ended_;
    over_[index] = true;
    Answer& answer = outcome.answer;  // of a server that counts nothing: a made prompt has about so many
    if (outcome.ok() && !answer.counted && answer.prompt_tokens == 0) answer.prompt_tokens = run_.prompts[index].tokens;
    if (!outcome.ok()) ++failed_;
    if (run_.on_end) run_.on_end(ended_, failed_);
    if (ended_ == run_.prompts.size()) {
      fault_timer_.cancel();
      if (stop_.is_open()) stop_.cancel();
    }
    SendWaiting();
  }

  const Run& run_;
  const Clock& clock_;
  asio::io_context io_{1};
  std::unique_ptr<Asker> client_;
  asio::steady_timer timer_, fault_timer_;
  asio::posix::stream_descriptor stop_;
  std::vector<Fault> faults_;  // in the order of time
  TimePoint start_{};
  std::deque<Waiting> waiting_;
  std::vector<bool> over_;  // by index: whether it has ended
  int running_ = 0;
  size_t ended_ = 0, failed_ = 0;
  RunResult result_;
};

}  // namespace

RunResult Execute(const Run& run, const Clock& clock) { return Offering(run, clock).Execute(clock.Now()); }

Verified VerifyIdentical(const Run& run, const std::vector<Outcome>& outcomes, const Clock& clock) {
  Run alone = run;
  alone.due.assign(run.prompts.size(), Duration::zero());
  alone.most_at_a_time = 1;
  alone.faults.clear();
  alone.request_id_prefix += "again-";
  const RunResult again = Execute(alone, clock);
  std::vector<const Outcome*> second(run.prompts.size());
  for (const Outcome& one : again.outcomes) second[one.index] = &one;
  Verified out;
  for (const Outcome& one : outcomes) {
    const Outcome* const other = second[one.index];
    if (!one.ok()) continue;
    if (other == nullptr || !other->ok()) {
      ++(other == nullptr ? out.unasked : out.failed);
      continue;
    }
    ++out.compared;
    if (one.answer.text == other->answer.text) continue;
    ++out.different;
    out.which.push_back(one.index);
  }
  return out;
}

}  // namespace baton::load
