// ResponseMemory: the conversations behind the answers of /v1/responses, so that a later request can go on from one by
// its id. In this process's memory only, up to a number of bytes for each owner, whose oldest go first. Thread-safe.
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
  /// `capacity_bytes`: of one owner.
  explicit ResponseMemory(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// `owner`: whose it is; nobody else finds it, or drives it out. `messages`: JSON objects with commas between them.
  void Keep(const std::string& owner, const std::string& id, std::string messages);
  std::optional<std::string> Find(const std::string& owner, const std::string& id) const;
  size_t BytesOf(const std::string& owner) const;

 private:
  struct Book {
    std::unordered_map<std::string, std::string> kept;
    std::deque<std::string> order;  ///< ids of kept, oldest first
    size_t bytes = 0;
  };

  const size_t capacity_bytes_;
  mutable std::mutex mutex_;                     // guards what follows
  std::unordered_map<std::string, Book> books_;  ///< by owner
};

}  // namespace baton::router
