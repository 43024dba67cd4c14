// Conversations that later requests go on from: each its owner's, the oldest go first.
#include "router/http/response_memory.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(ResponseMemory, AnAnswerIsFoundByItsOwnerOnly) {
  ResponseMemory memory(1 << 20);
  memory.Keep("one", "resp_1", "a");
  EXPECT_EQ(memory.Find("one", "resp_1"), "a");
  EXPECT_EQ(memory.Find("two", "resp_1"), std::nullopt);
  EXPECT_EQ(memory.Find("one", "resp_2"), std::nullopt);
  memory.Keep("one", "resp_1", "b");
  EXPECT_EQ(memory.Find("one", "resp_1"), "a") << "what was given stays as it was";
}

TEST(ResponseMemory, AnOwnersOldestMakeRoom) {
  ResponseMemory memory(10000);
  memory.Keep("other", "0", "first of all");
  for (int i = 0; i < 100; ++i) memory.Keep("", std::to_string(i), std::string(1000, 'x'));
  EXPECT_LE(memory.BytesOf(""), 10000u);
  EXPECT_GT(memory.BytesOf(""), 8000u);
  EXPECT_EQ(memory.Find("", "0"), std::nullopt);
  EXPECT_TRUE(memory.Find("", "99"));
  EXPECT_TRUE(memory.Find("other", "0")) << "nobody drives out what is another's";
  memory.Keep("", "large", std::string(20000, 'x'));
  EXPECT_EQ(memory.Find("", "large"), std::nullopt) << "it drives nothing out";
  EXPECT_TRUE(memory.Find("", "99"));
}

}  // namespace
}  // namespace baton::router
