#include "http_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "common/check.h"
#include "common/str_cat.h"

namespace baton::router {

HttpConnection::HttpConnection(int port, int receive_buffer_bytes, const char* own_address)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  BATON_CHECK(fd_ >= 0);
  if (receive_buffer_bytes > 0) SetReceiveBuffer(receive_buffer_bytes);
  const timeval patience{20, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (own_address != nullptr) {
    BATON_CHECK(inet_pton(AF_INET, own_address, &address.sin_addr) == 1);
    BATON_CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BATON_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
}

void HttpConnection::SetReceiveBuffer(int bytes) {
  BATON_CHECK(setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
}

HttpConnection::~HttpConnection() { Close(); }

void HttpConnection::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpConnection::ShutdownSend() { shutdown(fd_, SHUT_WR); }

void HttpConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the server closed: what it said can still be read
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string HttpConnection::ReceiveSome() {
  char buffer[65536];
  const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return "";
  received_.append(buffer, static_cast<size_t>(n));
  return std::string(buffer, static_cast<size_t>(n));
}

const std::string& HttpConnection::ReceiveUntil(std::string_view text) {
  while (received_.find(text) == std::string::npos && !ReceiveSome().empty()) continue;
  return received_;
}

const std::string& HttpConnection::ReceiveAll() {
  while (!ReceiveSome().empty()) continue;
  return received_;
}

HttpReply HttpConnection::Receive(bool head) {
  HttpReply reply;
  const size_t end = ReceiveUntil("\r\n\r\n").find("\r\n\r\n");
  if (end == std::string::npos) return reply;
  std::string top = received_.substr(0, end);
  received_.erase(0, end + 4);
  reply.status = std::atoi(top.c_str() + top.find(' ') + 1);
  for (size_t at = top.find("\r\n"); at != std::string::npos;) {
    const size_t next = top.find("\r\n", at + 2), colon = top.find(": ", at);
    std::string name = top.substr(at + 2, colon - at - 2);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = top.substr(colon + 2, (next == std::string::npos ? top.size() : next) - colon - 2);
    at = next;
  }
  if (head || reply.status == 204) return reply;
  if (auto length = reply.headers.find("content-length"); length != reply.headers.end()) {
    const size_t bytes = std::stoul(length->second);
    while (received_.size() < bytes && !ReceiveSome().empty()) continue;
    reply.body = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return reply;
  }
  while (true) {  // chunked
    const size_t line = ReceiveUntil("\r\n").find("\r\n");
    if (line == std::string::npos) return reply;
    const size_t bytes = std::stoul(received_, nullptr, 16);
    while (received_.size() < line + 2 + bytes + 2 && !ReceiveSome().empty()) continue;
    reply.body += received_.substr(line + 2, bytes);
    received_.erase(0, line + 2 + bytes + 2);
    if (bytes == 0) return reply;
  }
}

std::string RequestText(std::string_view method, std::string_view path, std::string_view body, const Headers& headers) {
  std::string out = StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&out, name, ": ", value, "\r\n");
  const bool typed =
      std::any_of(headers.begin(), headers.end(), [](const auto& h) { return h.first == "Content-Type"; });
  if (!body.empty() && !typed) absl::StrAppend(&out, "Content-Type: application/json\r\n");
  if (!body.empty()) absl::StrAppend(&out, "Content-Length: ", body.size(), "\r\n");
  return StrCat(out, "\r\n", body);
}

HttpReply Ask(int port, std::string_view method, std::string_view path, std::string_view body, const Headers& headers) {
  HttpConnection connection(port);
  connection.Send(RequestText(method, path, body, headers));
  return connection.Receive(method == "HEAD");
}

std::unique_ptr<HttpConnection> ConnectionThatAsked(int port) {
  while (true) {
    auto connection = std::make_unique<HttpConnection>(port);
    connection->Send(RequestText("HEAD", "/", ""));
    if (connection->Receive(/*head=*/true).status != 0) return connection;
  }
}

std::vector<std::string> EventsOf(std::string_view body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string_view event = body.substr(at, end - at);
    if (event.substr(0, 6) == "data: ") events.emplace_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

}  // namespace baton::router
