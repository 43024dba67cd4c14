// The line of a request in the router's log.
#include "router/request/request_log.h"

#include <gtest/gtest.h>

#include "common/json.h"
#include "common/log.h"

namespace baton::router {
namespace {

TEST(RequestLog, InJsonEachFigureIsAFieldOfItsOwn) {
  RequestLine line{"r", "error", "why", {1, 2, 3}};
  line.seconds = 4, line.first_token_s = 5, line.seed = 6, line.attempts = 7;
  line.worker = "d", line.prefill_worker = "p";
  line.stages = {.queue_prefill_ms = 8,
                 .prefill_ms = 9,
                 .transfer_ms = 10,
                 .queue_decode_ms = 11,
                 .first_decode_ms = 12,
                 .decode_ms = 13,
                 .router_ms = 14,
                 .lost_ms = 15,
                 .reserve_ms = 16,
                 .network_ms = 17};
  SetLogFormat("json");
  testing::internal::CaptureStdout();
  LogRequest(line);
  const auto object = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  SetLogFormat("text");
  SetLogName("baton");
  const nlohmann::json fields = {{"request_id", "r"},
                                 {"finish_reason", "error"},
                                 {"cause", "why"},
                                 {"prompt_tokens", 1},
                                 {"completion_tokens", 2},
                                 {"cached_tokens", 3},
                                 {"total_ms", 4000},
                                 {"first_token_ms", 5000},
                                 {"seed", "6"},
                                 {"attempts", 7},
                                 {"worker", "d"},
                                 {"prefill_worker", "p"},
                                 {"queue_prefill_ms", 8},
                                 {"prefill_ms", 9},
                                 {"transfer_ms", 10},
                                 {"queue_decode_ms", 11},
                                 {"first_decode_ms", 12},
                                 {"decode_ms", 13},
                                 {"router_ms", 14},
                                 {"lost_ms", 15},
                                 {"reserve_ms", 16},
                                 {"network_ms", 17}};
  for (const auto& [name, value] : fields.items()) EXPECT_EQ(object.value(name, nlohmann::json()), value) << name;
}

}  // namespace
}  // namespace baton::router
