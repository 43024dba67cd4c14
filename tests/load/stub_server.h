// A server of HTTP/1.1 on loopback whose answers the test writes, byte by byte. One thread a connection; ends with the
// object.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace baton::load {

/// What the server does with one request.
struct Reply {
  std::string bytes;   ///< written as they are
  bool close = false;  ///< after them
};

/// An event stream as one chunked answer, from the data of its events.
std::string Stream(const std::vector<std::string>& events);
/// A whole answer with a body of known length.
std::string Whole(int status, const std::string& type, const std::string& body);

class StubServer {
 public:
  /// `reply` gets a request's body and its number; called from several threads.
  explicit StubServer(std::function<Reply(const std::string& body, int number)> reply);
  ~StubServer();
  StubServer(const StubServer&) = delete;
  StubServer& operator=(const StubServer&) = delete;

  int port() const { return port_; }
  int connections() const { return connections_; }
  int requests() const { return requests_; }

 private:
  void Accept();
  void Serve(int fd);

  const std::function<Reply(const std::string&, int)> reply_;
  int listener_, port_;
  std::atomic<int> connections_{0}, requests_{0};
  std::mutex mutex_;
  std::vector<int> fds_;              // guarded by mutex_
  std::vector<std::thread> threads_;  // guarded by mutex_
  std::thread acceptor_;
};

}  // namespace baton::load
