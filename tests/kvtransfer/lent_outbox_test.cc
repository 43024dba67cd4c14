// What a hello says of an outbox that a transport lends.
#include "kvtransfer/lent_outbox.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(LentOutbox, ComesAsItWasSent) {
  const auto parsed = LentOutbox::Parse(LentOutbox{1 << 20, 4096, MarkDigest("mark"), std::string("ke\0y", 4)}.Pack());
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->bytes, uint64_t{1} << 20);
  EXPECT_EQ(parsed->mark_bytes, 4096u);
  EXPECT_EQ(parsed->mark_digest, MarkDigest("mark"));
  EXPECT_EQ(parsed->lent, std::string("ke\0y", 4));
}

TEST(LentOutbox, WhatIsNoneIsNone) {
  const std::string right = LentOutbox{8192, 4096, 1, ""}.Pack();
  ASSERT_TRUE(LentOutbox::Parse(right).has_value());
  for (size_t bytes = 0; bytes < right.size(); ++bytes)
    EXPECT_FALSE(LentOutbox::Parse(right.substr(0, bytes))) << bytes;
  EXPECT_FALSE(LentOutbox::Parse("X" + right.substr(1)).has_value());
  for (const LentOutbox& wrong : {LentOutbox{4095, 4096, 1, ""}, LentOutbox{8192, 0, 1, ""},
                                  LentOutbox{1 << 20, kMaxMarkBytes + 1, 1, ""}, LentOutbox{~0ull, 4096, 1, ""}})
    EXPECT_FALSE(LentOutbox::Parse(wrong.Pack()).has_value()) << wrong.bytes << " " << wrong.mark_bytes;
}

}  // namespace
}  // namespace baton
