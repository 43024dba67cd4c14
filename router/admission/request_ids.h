// RequestIds: names for requests, of random bits: no id tells another one, for workers look requests up by them.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace baton::router {

class RequestIds {
 public:
  /// The id a client gave, if it is printable ASCII of at most 128 bytes; else a new one of 32 hex digits.
  std::string GivenOrNew(std::string_view given);
  /// A client may use one id twice at once; workers may not see that: `id` and a suffix that is used once.
  std::string OnceOnly(const std::string& id);
};

}  // namespace baton::router
