#include "router/asio_event_loop.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>

#include "common/check.h"

namespace baton::router {
namespace asio = boost::asio;
namespace {

class AsioTimer final : public EventLoopTimer {
 public:
  explicit AsioTimer(asio::io_context& context) : timer_(context) {}

  void ArmAt(TimePoint at, absl::AnyInvocable<void()> fn) override {
    const uint64_t armed = ++*generation_;
    timer_.expires_at(std::chrono::time_point_cast<asio::steady_timer::duration>(at));
    timer_.async_wait([fn = std::move(fn), generation = generation_, armed](boost::system::error_code error) mutable {
      if (!error && *generation == armed) fn();  // a wait that had already expired when it was replaced stays silent
    });
  }
  void Cancel() override {
    ++*generation_;
    timer_.cancel();
  }
  ~AsioTimer() override { ++*generation_; }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<uint64_t> generation_ = std::make_shared<uint64_t>(0);
};

class AsioEventLoop final : public EventLoop {
 public:
  AsioEventLoop() : work_(asio::make_work_guard(context_)), thread_([this] { context_.run(); }) {}
  ~AsioEventLoop() override { Stop(); }

  void Post(absl::AnyInvocable<void()> fn) override { asio::post(context_, std::move(fn)); }
  std::unique_ptr<EventLoopTimer> MakeTimer() override { return std::make_unique<AsioTimer>(context_); }
  bool RunningHere() const override { return std::this_thread::get_id() == thread_.get_id(); }
  asio::io_context& context() { return context_; }
  void Stop() {
    work_.reset();
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace

struct EventLoopPool::Threads {
  std::vector<std::unique_ptr<AsioEventLoop>> all;
  std::atomic<size_t> next{0};
};

EventLoopPool::EventLoopPool(size_t threads) : threads_(std::make_unique<Threads>()) {
  for (size_t i = 0; i < threads; ++i) threads_->all.push_back(std::make_unique<AsioEventLoop>());
}
EventLoopPool::~EventLoopPool() { Stop(); }
size_t EventLoopPool::size() const { return threads_->all.size(); }
EventLoop& EventLoopPool::at(size_t i) { return *threads_->all[i]; }
EventLoop& EventLoopPool::Next() {
  return *threads_->all[threads_->next.fetch_add(1, std::memory_order_relaxed) % threads_->all.size()];
}
void EventLoopPool::Stop() {
  for (auto& one : threads_->all) one->Stop();
}

asio::io_context& AsioContext(EventLoop& loop) {
  auto* of_pool = dynamic_cast<AsioEventLoop*>(&loop);
  BATON_CHECK(of_pool != nullptr, "the loop is none of an EventLoopPool");
  return of_pool->context();
}

asio::io_context& EventLoopPoolAccess::Context(EventLoopPool& pool, size_t i) {
  return pool.threads_->all[i]->context();
}

}  // namespace baton::router
