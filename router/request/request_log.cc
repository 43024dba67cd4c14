#include "router/request/request_log.h"

#include "common/log_fields.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

std::string LineText(const RequestLine& r) {
  std::string out =
      fmt::format("request {} {}: prompt {} (cached {}), output {}, {:.3f} s, first token {:.3f} s, seed {}, worker {}",
                  r.id, r.reason, r.usage.prompt_tokens, r.usage.cached_tokens, r.usage.completion_tokens, r.seconds,
                  r.first_token_s, r.seed, r.worker);
  if (!r.prefill_worker.empty()) out += StrCat(", prefill ", r.prefill_worker);
  if (r.attempts > 1) out += StrCat(", ", r.attempts, " attempts");
  if (!r.cause.empty()) out += StrCat(", cause: ", r.cause);
  return out;
}

}  // namespace

void LogRequest(const RequestLine& r) {
  LogWithFields(r.reason == "error" ? LogLevel::kWarning : LogLevel::kInfo, LineText(r),
                {{"request_id", r.id},
                 {"finish_reason", r.reason},
                 {"cause", r.cause},
                 {"prompt_tokens", r.usage.prompt_tokens},
                 {"cached_tokens", r.usage.cached_tokens},
                 {"completion_tokens", r.usage.completion_tokens},
                 {"total_ms", r.seconds * 1000},
                 {"first_token_ms", r.first_token_s * 1000},
                 {"router_ms", r.stages.router_ms},
                 {"lost_ms", r.stages.lost_ms},
                 {"queue_prefill_ms", r.stages.queue_prefill_ms},
                 {"prefill_ms", r.stages.prefill_ms},
                 {"transfer_ms", r.stages.transfer_ms},
                 {"reserve_ms", r.stages.reserve_ms},
                 {"queue_decode_ms", r.stages.queue_decode_ms},
                 {"first_decode_ms", r.stages.first_decode_ms},
                 {"network_ms", r.stages.network_ms},
                 {"decode_ms", r.stages.decode_ms},
                 {"seed", StrCat(r.seed)},  // JSON's readers keep 53 bits of a number
                 {"worker", r.worker},
                 {"prefill_worker", r.prefill_worker},
                 {"attempts", r.attempts}});
}

}  // namespace baton::router
