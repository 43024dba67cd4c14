// Conversations that later requests go on from: each its owner's, the oldest go first.
#include "router/http/response_memory.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(ResponseMemory, AnAnswerIsFoundByItsOwnerOnly) {
  ResponseMemory memory(1 << 20, 1 << 20);
  memory.Keep("one", "resp_1", {"a", "{}"});
  EXPECT_EQ(memory.Find("one", "resp_1")->messages, "a");
  EXPECT_EQ(memory.Find("one", "resp_1")->answer, "{}");
  EXPECT_FALSE(memory.Find("two", "resp_1"));
  EXPECT_FALSE(memory.Find("one", "resp_2"));
  memory.Keep("one", "resp_1", {"b", ""});
  EXPECT_EQ(memory.Find("one", "resp_1")->messages, "a") << "what was given stays as it was";
}

TEST(ResponseMemory, AnOwnersOldestMakeRoom) {
  ResponseMemory memory(10000, 100000);
  memory.Keep("other", "0", {"first of all", ""});
  for (int i = 0; i < 100; ++i) memory.Keep("", std::to_string(i), {std::string(400, 'x'), std::string(600, 'y')});
  EXPECT_LE(memory.BytesOf(""), 10000u);
  EXPECT_GT(memory.BytesOf(""), 8000u);
  EXPECT_FALSE(memory.Find("", "0"));
  EXPECT_TRUE(memory.Find("", "99"));
  EXPECT_TRUE(memory.Find("other", "0")) << "nobody drives out what is another's";
  memory.Keep("", "large", {std::string(10, 'x'), std::string(20000, 'y')});
  EXPECT_FALSE(memory.Find("", "large")) << "it drives nothing out";
  EXPECT_TRUE(memory.Find("", "99"));
}

TEST(ResponseMemory, ManyOwnersHaveABoundTogetherAndWhoHasMostGivesUpItsOldest) {
  ResponseMemory memory(10000, 40000);
  memory.Keep("small", "0", {"little", ""});
  for (int round = 0; round < 5; ++round) {
    for (int owner = 0; owner < 50; ++owner)
      memory.Keep(std::to_string(owner), std::to_string(round), {std::string(1500, 'x'), ""});
  }
  EXPECT_LE(memory.bytes(), 40000u);
  EXPECT_GT(memory.bytes(), 36000u);
  EXPECT_TRUE(memory.Find("small", "0"));
  EXPECT_TRUE(memory.Find("49", "4")) << "the latest";
}

TEST(ResponseMemory, WhatItsOwnerForgetsIsGoneAndLeavesItsRoom) {
  ResponseMemory memory(10000, 100000);
  memory.Keep("one", "resp_1", {std::string(3000, 'x'), "{}"});
  memory.Keep("one", "resp_2", {std::string(3000, 'x'), "{}"});
  EXPECT_FALSE(memory.Forget("two", "resp_1"));
  EXPECT_TRUE(memory.Forget("one", "resp_1"));
  EXPECT_FALSE(memory.Forget("one", "resp_1"));
  EXPECT_FALSE(memory.Find("one", "resp_1"));
  EXPECT_LT(memory.BytesOf("one"), 4000u);
  for (int i = 0; i < 10; ++i) memory.Keep("one", std::to_string(i), {std::string(3000, 'x'), "{}"});
  EXPECT_TRUE(memory.Find("one", "9")) << "the forgotten one is not looked for when the oldest make room";
}

}  // namespace
}  // namespace baton::router
