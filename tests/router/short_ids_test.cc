// The ids of long prompts on their way to workers that take 16 bits of each, and to those that know nothing of it.
#include <gtest/gtest.h>

#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, AWorkerIsSentIdsOf16BitsIfItSaidThatItTakesThem) {
  constexpr int kLong = 1500;
  for (const bool takes : {true, false}) {
    FakeWorker worker({.takes_short_ids = takes});
    Start({&worker});
    ASSERT_EQ(Complete(R"("max_tokens":1)").status, 200);
    std::string ids;
    for (int i = 0; i < kLong; ++i) absl::StrAppend(&ids, i ? "," : "", i % 500);
    ASSERT_EQ(Ask(port_, "POST", "/v1/completions", StrCat(R"({"max_tokens":1,"prompt":[)", ids, "]}")).status, 200);
    const auto attaches = worker.attaches();
    ASSERT_EQ(attaches.size(), 2u);
    EXPECT_EQ(attaches[0].prompt_token_ids().size(), 4 * 8u) << "it is short itself";
    EXPECT_EQ(attaches[1].short_prompt_token_ids().size(), takes ? 2u * kLong : 0u);
    EXPECT_EQ(attaches[1].prompt_token_ids().size(), takes ? 0u : 4u * kLong);
    EXPECT_EQ(attaches[1].prompt_len(), static_cast<uint32_t>(kLong));
    server_->Stop();
  }
}

}  // namespace
}  // namespace baton::router
