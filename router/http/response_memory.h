// ResponseMemory: the conversations behind the answers of /v1/responses, so that a later request can go on from one by
// its id, or ask for it again. In this process's memory only, up to a number of bytes for each owner, whose oldest go
// first, and another for all, beyond which the owner with the most gives up its oldest. Thread-safe.
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
  /// Of one owner, and of all together: no fewer.
  ResponseMemory(size_t capacity_bytes, size_t all_bytes) : capacity_bytes_(capacity_bytes), all_bytes_(all_bytes) {}

  struct Kept {
    std::string messages;  ///< the conversation to its end: JSON objects with commas between them
    std::string answer;    ///< as it was given: a JSON object
    std::string input;     ///< of its request: JSON, a text or items
  };

  /// `owner`: whose it is; nobody else finds it, or drives it out.
  void Keep(const std::string& owner, const std::string& id, Kept kept);
  std::optional<Kept> Find(const std::string& owner, const std::string& id) const;
  /// False: there is none.
  bool Forget(const std::string& owner, const std::string& id);
  size_t BytesOf(const std::string& owner) const;
  size_t bytes() const;  ///< of all

 private:
  struct Book {
    std::unordered_map<std::string, Kept> kept;
    std::deque<std::string> order;  ///< ids of kept, oldest first
    size_t bytes = 0;
  };
  // With `mutex_` held.
  /// Takes one out of `kept`; its id stays in `order` for the caller.
  void Drop(Book& book, std::unordered_map<std::string, Kept>::iterator one);
  void DropOldest(Book& book);

  const size_t capacity_bytes_, all_bytes_;
  mutable std::mutex mutex_;                     // guards what follows
  std::unordered_map<std::string, Book> books_;  ///< by owner
  size_t bytes_ = 0;
};

}  // namespace baton::router
