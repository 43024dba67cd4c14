#include "router/http/seen_bodies.h"

#include <memory>
#include <utility>

#include "router/request/request_service.h"

namespace baton::router {

bool SeenBodies::Takes(size_t body_bytes) { return body_bytes > kShortTextBytes && body_bytes <= kMostLookedAt; }

uint64_t SeenBodies::HashOf(std::string_view body, std::string_view salt) const {
  return SeededHash(body, SaltedSeed(bodies_.seed(), salt));
}

std::optional<CompletionRequest> SeenBodies::Find(BodyParser parse, std::string_view body, std::string_view salt) {
  if (bodies_.keeps_nothing() || !Takes(body.size())) return std::nullopt;
  const auto known = bodies_.Find(HashOf(body, salt));
  if (known == nullptr || known->parse != parse || known->body != body) return std::nullopt;
  found_bytes_ += static_cast<int64_t>(known->text_bytes);
  return known->request;
}

void SeenBodies::Keep(BodyParser parse, std::string body, const CompletionRequest& request, size_t text_bytes,
                      std::string_view salt) {
  if (bodies_.keeps_nothing() || !Takes(body.size())) return;
  const uint64_t hash = HashOf(body, salt);
  if (!bodies_.CameBefore(hash)) return;
  const size_t bytes = body.size() + PromptIds::BytesOf(std::get<SeenPrompt>(request.prompts.front()).ids.size());
  bodies_.Keep(hash, std::make_shared<const Known>(Known{parse, std::move(body), request, text_bytes}), bytes);
}

}  // namespace baton::router
