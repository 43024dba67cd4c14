// ResponseMemory: the conversations behind the answers of /v1/responses, so that a later request can go on from one by
// its id. In this process's memory only, up to a number of bytes; the oldest go first. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace baton::router {

class ResponseMemory {
 public:
  explicit ResponseMemory(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// `owner`: whose it is; nobody else finds it. `messages`: JSON objects with commas between them.
  void Keep(const std::string& owner, const std::string& id, std::string messages);
  std::optional<std::string> Find(const std::string& owner, const std::string& id) const;
  size_t bytes() const;

 private:
  static std::string Key(const std::string& owner, const std::string& id) { return owner + '\n' + id; }

  const size_t capacity_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, std::string> kept_;
  std::deque<std::string> order_;  ///< keys of kept_, oldest first
  size_t bytes_ = 0;
};

}  // namespace baton::router
