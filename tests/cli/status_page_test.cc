// What a machine of a worker answers to probes and scrapes.
#include "cli/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using testing::HasSubstr;

router::HttpResponse Get(const std::string& path, const MachineStatus& machine, const std::string& method = "GET") {
  return AnswerOf({.method = method, .path = path}, machine,
                  {.cpu_seconds = 1.5, .resident_bytes = 4096, .log_lines_lost = 3});
}

MachineStatus Second() {
  return {
      .worker = "decode-0", .role = "decode", .version = "1", .node = 1, .nodes = 2, .first_rank = 2, .num_ranks = 2};
}

TEST(StatusPage, IsAliveFromTheBeginningAndReadyWhenItsRanksServe) {
  MachineStatus machine = Second();
  machine.phase = "loads";
  EXPECT_EQ(Get("/live", machine).status, 200);
  EXPECT_EQ(Get("/ready", machine).status, 503);
  EXPECT_THAT(Get("/ready", machine).body,
              HasSubstr(R"("status":"loading","worker":"decode-0","machine":1,"machines":2)"));
  EXPECT_THAT(Get("/ready", machine).body, HasSubstr(R"("phase":"loads")"));
  machine.ready = true;
  EXPECT_EQ(Get("/ready", machine).status, 200);
  EXPECT_EQ(Get("/readyz", machine).status, 200);
  EXPECT_EQ(Get("/livez", machine).status, 200);
}

TEST(StatusPage, MetricsAreOfThisMachineAndItsProcess) {
  const std::string text = Get("/metrics", Second()).body;
  EXPECT_THAT(text, HasSubstr("\nbaton_machine_ready{worker=\"decode-0\",machine=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_machine_ranks{worker=\"decode-0\",machine=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nbaton_log_lines_lost_total{worker=\"decode-0\",machine=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_cpu_seconds_total 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_resident_memory_bytes 4096\n"));
  EXPECT_GT(UseOfThisProcess().resident_bytes, 1 << 20);
}

TEST(StatusPage, EverythingElseIsRefusedByName) {
  EXPECT_EQ(Get("/v1/models", Second()).status, 404);
  EXPECT_THAT(Get("/", Second()).body, HasSubstr("/ready"));
  EXPECT_EQ(Get("/ready", Second(), "POST").status, 405);
}

}  // namespace
}  // namespace baton::cli
