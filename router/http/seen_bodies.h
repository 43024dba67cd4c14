// SeenBodies: what long bodies ask for that come again, byte for byte, and whose chat's token ids are known: those of a
// retry, of several answers asked for one by one, of a load test. A found body is not read as JSON. One that differs in
// any byte is another; its chat may still be known (request/seen_chats.h). So is one of another API key, where keys
// share no prefix cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "router/http/json_request.h"
#include "router/request/kept_twice.h"

namespace baton::router {

using BodyParser = std::variant<CompletionRequest, ApiError> (*)(std::string_view body, const JsonLimits& limits);

/// Any thread.
class SeenBodies {
 public:
  /// `capacity_bytes` counts bodies, ids and bookkeeping; 0 keeps nothing.
  explicit SeenBodies(size_t capacity_bytes) : bodies_(capacity_bytes) {}

  /// What `parse` made of this body, with a SeenPrompt. Nothing: not kept.
  /// `salt`: of its key (ApiKeys::SaltOf).
  std::optional<CompletionRequest> Find(BodyParser parse, std::string_view body, std::string_view salt);
  /// `request` is what `parse` made of `body`, with its prompt a SeenPrompt in place of `text_bytes` of text.
  void Keep(BodyParser parse, std::string body, const CompletionRequest& request, size_t text_bytes,
            std::string_view salt);
  struct Counts {
    int64_t found_bytes = 0;  ///< of prompts' text, since its start
    size_t kept_bytes = 0;    ///< now
  };
  Counts counts() const { return {found_bytes_, bodies_.kept_bytes()}; }
  /// Bytes of a router's token cache: its part, and what is left for others.
  static size_t PartOf(int32_t token_cache_mib) { return (static_cast<size_t>(token_cache_mib) << 20) / 8; }
  static size_t RestOf(int32_t token_cache_mib) { return 7 * PartOf(token_cache_mib); }
  /// Whether it looks at bodies of this length: those are worth it, and are looked at on a loop.
  static bool Takes(size_t body_bytes);

 private:
  struct Known {
    BodyParser parse;
    std::string body;
    CompletionRequest request;
    size_t text_bytes;
  };
  uint64_t HashOf(std::string_view body, std::string_view salt) const;

  KeptTwice<Known> bodies_;
  std::atomic<int64_t> found_bytes_ = 0;
};

}  // namespace baton::router
