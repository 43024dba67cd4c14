// BeastExchange: one request's answer as the connection's coroutine sees it: bytes to send, and a timer that wakes it.
// Belongs to its executor's thread. Include only from .cc files.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "common/str_cat.h"
#include "router/http/http_types.h"

namespace baton::router {

class BeastExchange final : public HttpExchange {
 public:
  BeastExchange(Executor& executor, boost::asio::io_context& context, const HttpHeaders& always, bool keep_alive,
                bool http11, bool head)
      : executor_(executor),
        wake_(context),
        always_(always),
        keep_alive_(keep_alive),
        http11_(http11),
        head_only_(head) {
    wake_.expires_at(boost::asio::steady_timer::time_point::max());
  }

  Executor& executor() override { return executor_; }

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

  void Write(std::string bytes) override {
    if (ended_ || gone_ || bytes.empty()) return;
    if (chunked_) {
      absl::StrAppend(&pending_, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
    } else {
      pending_ += bytes;
    }
    Wake();
  }

  void End() override {
    if (ended_ || gone_) return;
    if (chunked_) pending_ += "0\r\n\r\n";
    ended_ = true;
    Wake();
  }

  size_t UnsentBytes() const override { return pending_.size() + in_flight_; }

  void Watch(std::function<void()> gone, std::function<void()> drained) override {
    if (gone_) return gone();
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
  void Sent() {
    in_flight_ = 0;
    if (pending_.empty() && on_drained_ && !ended_) on_drained_();
  }
  void ClientGone() {
    if (std::exchange(gone_, true)) return;
    auto gone = std::exchange(on_gone_, nullptr);
    on_drained_ = nullptr;
    if (gone && !ended_) gone();
    Wake();
  }
  void Release() { on_gone_ = nullptr, on_drained_ = nullptr; }

 private:
  void Wake() { wake_.cancel(); }
  void Head(int status, const HttpHeaders& headers, const std::string& content_type) {
    absl::StrAppend(&pending_, "HTTP/1.1 ", status, " ", HttpReason(status), "\r\n");
    if (status != 204) absl::StrAppend(&pending_, "Content-Type: ", content_type, "\r\n");
    for (const auto& [key, value] : headers) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    for (const auto& [key, value] : always_) absl::StrAppend(&pending_, key, ": ", value, "\r\n");
    pending_ += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  }

  Executor& executor_;
  boost::asio::steady_timer wake_;
  const HttpHeaders& always_;
  bool keep_alive_;
  const bool http11_, head_only_;
  std::string pending_;
  size_t in_flight_ = 0;
  bool started_ = false, chunked_ = false, ended_ = false, gone_ = false;
  std::function<void()> on_gone_, on_drained_;
};

}  // namespace baton::router
