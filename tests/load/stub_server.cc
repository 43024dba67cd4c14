#include "tests/load/stub_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "common/check.h"
#include "common/str_cat.h"

namespace baton::load {

std::string Stream(const std::vector<std::string>& events) {
  std::string out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& event : events) {
    const std::string data = StrCat("data: ", event, "\n\n");
    out += StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n");
  }
  return out + "0\r\n\r\n";
}

std::string Whole(int status, const std::string& type, const std::string& body) {
  return StrCat("HTTP/1.1 ", status, " Text\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(), "\r\n\r\n",
                body);
}

StubServer::StubServer(std::function<Reply(const std::string&, int)> reply) : reply_(std::move(reply)) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  BATON_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  BATON_CHECK(listen(listener_, 512) == 0);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

StubServer::~StubServer() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (int fd : fds_) shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (int fd : fds_) close(fd);
  close(listener_);
}

void StubServer::Accept() {
  for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
    ++connections_;
    const std::lock_guard lock(mutex_);
    fds_.push_back(fd);
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void StubServer::Serve(int fd) {
  std::string got;
  std::vector<char> bytes(65536);
  for (;;) {
    const size_t head = got.find("\r\n\r\n");
    size_t length = 0;
    if (head != std::string::npos) {
      const size_t at = got.find("Content-Length: ");
      BATON_CHECK(at != std::string::npos &&
                  absl::SimpleAtoi(got.substr(at + 16, got.find('\r', at) - at - 16), &length));
    }
    if (head == std::string::npos || got.size() < head + 4 + length) {
      const ssize_t n = read(fd, bytes.data(), bytes.size());
      if (n <= 0) return;
      got.append(bytes.data(), static_cast<size_t>(n));
      continue;
    }
    const Reply reply = reply_(got.substr(head + 4, length), requests_++);
    got.erase(0, head + 4 + length);
    if (send(fd, reply.bytes.data(), reply.bytes.size(), MSG_NOSIGNAL) < 0 || reply.close) {
      shutdown(fd, SHUT_RDWR);
      return;
    }
  }
}

}  // namespace baton::load
