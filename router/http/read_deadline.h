// ReadDeadline: ends what a stream waits for when time is up, or its place is wanted, and leaves the stream open: there
// is an answer to send. (The stream's own timer closes it.) Belongs to the stream's thread. Include only from .cc
// files.
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace baton::router {

class ReadDeadline {
 public:
  /// `stream` outlives the deadline.
  explicit ReadDeadline(boost::beast::tcp_stream& stream) : timer_(stream.get_executor()), round_(new Round{stream}) {}
  ~ReadDeadline() { Disarm(); }
  ReadDeadline(const ReadDeadline&) = delete;
  ReadDeadline& operator=(const ReadDeadline&) = delete;

  void Arm(std::chrono::milliseconds after) {
    round_->over = round_->given_up = false;
    timer_.expires_after(after);
    timer_.async_wait([round = round_, number = ++round_->number](boost::system::error_code error) {
      if (error || round->number != number) return;  // an expired wait may still be queued when it is disarmed
      round->over = true;
      round->stream.cancel();
    });
  }
  void Disarm() {
    ++round_->number;
    timer_.cancel();
  }
  /// Ends the wait that is armed now, as if its time were up; nothing once it is disarmed. For any thread, also when
  /// the deadline is gone.
  std::function<void()> GiveUp() {
    return [executor = timer_.get_executor(), round = round_, number = round_->number] {
      boost::asio::post(executor, [round, number] {
        if (round->number != number) return;
        round->over = round->given_up = true;
        round->stream.cancel();
      });
    };
  }
  /// Whether the time was up before it was disarmed.
  bool over() const { return round_->over; }
  /// Whether that was by GiveUp.
  bool given_up() const { return round_->given_up; }

 private:
  struct Round {
    boost::beast::tcp_stream& stream;
    uint64_t number = 0;
    bool over = false, given_up = false;
  };
  boost::asio::steady_timer timer_;
  const std::shared_ptr<Round> round_;
};

}  // namespace baton::router
