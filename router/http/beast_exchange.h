// BeastExchange: one request's answer as the connection's coroutine sees it: bytes to send, and a timer that wakes it.
// A client that keeps up is written to without the coroutine: everything that one turn of the loop gave goes to the
// socket at the turn's end. The coroutine writes the first bytes, what the socket would not take, and the end. Belongs
// to its loop's thread. Include only from .cc files.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <memory>
#include <string>
#include <utility>

#include "common/str_cat.h"
#include "router/http/client_stream.h"
#include "router/http/http_types.h"

namespace baton::router {

class BeastExchange final : public HttpExchange, public std::enable_shared_from_this<BeastExchange> {
 public:
  /// `always`, `draining`: they outlive it.
  BeastExchange(EventLoop& loop, boost::asio::io_context& context, const HttpHeaders& always,
                const std::atomic<bool>& draining, bool keep_alive, bool http11, bool head)
      : loop_(loop),
        context_(context),
        wake_(context),
        always_(always),
        draining_(draining),
        keep_alive_(keep_alive),
        http11_(http11),
        head_only_(head) {
    wake_.expires_at(boost::asio::steady_timer::time_point::max());
  }

  EventLoop& loop() override { return loop_; }

  void Respond(HttpResponse response) override {
    if (ended_ || gone_ || started_) return;
    started_ = true;
    Head(response.status, response.headers, response.content_type);
    if (response.status != 204) absl::StrAppend(&pending_, "Content-Length: ", response.body.size(), "\r\n");
    pending_ += "\r\n";
    if (!head_only_) pending_ += response.body;
    End();
  }

  void StartStream(int status, HttpHeaders headers, std::string content_type) override {
    if (ended_ || gone_ || started_) return;
    started_ = true;
    chunked_ = http11_;
    if (!http11_) keep_alive_ = false;
    Head(status, headers, content_type);
    pending_ += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  }

  void Write(std::string_view bytes) override {
    if (ended_ || gone_ || bytes.empty()) return;
    if (chunked_) {
      char size[2 * sizeof(size_t)];
      pending_.append(size, std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr).append("\r\n");
      pending_.append(bytes).append("\r\n");
    } else {
      pending_ += bytes;
    }
    over_ = over_ || UnsentBytes() > over_bytes_;
    Wake();
  }

  void End() override {
    if (ended_ || gone_) return;
    if (chunked_) pending_ += "0\r\n\r\n";
    ended_ = true;
    Wake();
  }

  size_t UnsentBytes() const override { return pending_.size() + in_flight_; }
  uint64_t TakenBytes() const override { return taken_; }

  void Watch(std::function<void()> gone, size_t over_bytes, std::function<void()> drained) override {
    if (gone_) return gone();
    over_bytes_ = over_bytes;
    on_gone_ = std::move(gone);
    on_drained_ = std::move(drained);
  }

  // ---- for the connection's coroutine
  bool has_output() const { return !pending_.empty(); }
  bool ended() const { return ended_; }
  bool gone() const { return gone_; }
  bool keep_alive() const { return keep_alive_; }
  boost::asio::steady_timer& wake() { return wake_; }
  std::string TakeOutput() {
    in_flight_ = pending_.size();
    return std::exchange(pending_, {});
  }
  /// Gives `bytes`.
  size_t Took(size_t bytes) {
    taken_ += bytes;
    return bytes;
  }
  void Sent() {
    in_flight_ = 0;
    if (!over_ || !pending_.empty()) return;
    over_ = false;
    if (on_drained_ && !ended_) on_drained_();
  }
  void ClientGone() {
    if (std::exchange(gone_, true)) return;
    auto gone = std::exchange(on_gone_, nullptr);
    on_drained_ = nullptr;
    if (gone && !ended_) gone();
    Wake();
  }
  void Release() {
    on_gone_ = nullptr;
    on_drained_ = nullptr;
    idle_ = nullptr;
  }
  /// The coroutine sleeps on wake(): until it is woken, output may go to `stream` past it. Null: it writes itself.
  void SetIdle(ClientStream* stream) { idle_ = stream; }

 private:
  void Wake() {
    if (idle_ == nullptr || ended_ || gone_) {
      wake_.cancel();
    } else if (!std::exchange(flush_posted_, true)) {
      boost::asio::post(context_, [self = shared_from_this()] { self->Flush(); });
    }
  }
  void Flush() {
    flush_posted_ = false;
    if (idle_ == nullptr || pending_.empty()) return;
    boost::system::error_code error;
    const size_t sent = Took(idle_->WriteNow(pending_, error));
    if (!error && sent == pending_.size()) {
      pending_.clear();  // keeps its memory
      return Sent();
    }
    pending_.erase(0, error ? 0 : sent);
    wake_.cancel();  // the coroutine waits for the client, or finds that it is gone
  }
  void Head(int status, const HttpHeaders& headers, const std::string& content_type) {
    keep_alive_ = keep_alive_ && !draining_;
    absl::StrAppend(&pending_, "HTTP/1.1 ", status, " ", HttpReason(status), "\r\n");
    if (status != 204) absl::StrAppend(&pending_, "Content-Type: ", content_type, "\r\n");
    for (const auto& [key, value] : headers) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    for (const auto& [key, value] : always_) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    pending_ += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  }

  EventLoop& loop_;
  boost::asio::io_context& context_;
  boost::asio::steady_timer wake_;
  ClientStream* idle_ = nullptr;
  bool flush_posted_ = false;
  const HttpHeaders& always_;
  const std::atomic<bool>& draining_;  ///< whoever is answered from now on comes again by another connection
  bool keep_alive_;
  const bool http11_, head_only_;
  std::string pending_;
  size_t in_flight_ = 0;
  uint64_t taken_ = 0;
  size_t over_bytes_ = 0;
  bool over_ = false;  // more than over_bytes_ have waited since everything was taken
  bool started_ = false, chunked_ = false, ended_ = false, gone_ = false;
  std::function<void()> on_gone_, on_drained_;
};

}  // namespace baton::router
