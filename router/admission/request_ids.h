// RequestIds: names for requests, unique in this process and, by a random base, between processes. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::router {

class RequestIds {
 public:
  RequestIds();

  /// The id a client gave, if it is printable ASCII of at most 128 bytes; else a new one of 32 hex digits.
  std::string GivenOrNew(std::string_view given);
  /// A client may use one id twice at once; workers may not see that: `id` and a suffix that is used once.
  std::string OnceOnly(const std::string& id);

 private:
  const uint64_t base_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace baton::router
