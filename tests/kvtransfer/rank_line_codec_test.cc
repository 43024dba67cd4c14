// What ranks of a worker say to each other, in bytes.
#include "kvtransfer/rank_line_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/hex.h"

namespace baton {
namespace {

SlotOrder Order() {
  return {.peer = 0x0102030405060708,
          .lane = {0x11, 0x12, 0x13},
          .slot = {0x21, 0x22},
          .plan = 0x31,
          .tell = true,
          .segments = {0x41, 0x42},
          .tables = {{0x51, 0x52, {-1, 0x53}}}};
}

std::vector<RankNews> SlotNews() {
  const LaneKey lane{1, 2, 3};
  return {SlotWorked{7, lane, {4, 5}, absl::OkStatus(), true},
          SlotWorked{7, lane, {4, 5}, absl::DataLossError("not verified")},
          SlotHeard{7, SlotFull{lane, {4, 5}, {8, 9}}}, SlotHeard{7, SlotFree{lane, {4, 5}, false}}};
}

// The hexadecimal texts were put together by hand.
TEST(RankLineCodec, OfSlotsHaveTheseBytes) {
  EXPECT_EQ(Hex(EncodeRankOrder(Order())),
            "0001"
            "0807060504030201"
            "11000000000000001200000013000000"
            "2100000022000000"
            "3100000000000000"
            "0100"
            "020000004100000042000000"
            "010000005100000052000000"
            "02000000ffffffff53000000");
  const std::string lane =
      "0700000000000000"
      "01000000000000000200000003000000"
      "0400000005000000";
  const std::vector<RankNews> news = SlotNews();
  EXPECT_EQ(Hex(EncodeRankNews(news[0])), "0002" + lane +
                                              "01"
                                              "00"
                                              "00000000");
  EXPECT_EQ(Hex(EncodeRankNews(news[1])), "0002" + lane +
                                              "00"
                                              "0f"
                                              "0c000000"
                                              "6e6f74207665726966696564");
  EXPECT_EQ(Hex(EncodeRankNews(news[2])), "0003" + lane +
                                              "02000000"
                                              "0800000009000000");
  EXPECT_EQ(Hex(EncodeRankNews(news[3])), "0004" + lane + "00");
}

TEST(RankLineCodec, ArriveAsTheyWereSaid) {
  EXPECT_EQ(std::get<SlotOrder>(DecodeRankOrder(EncodeRankOrder(Order())).value()), Order());
  for (const RankNews& news : SlotNews()) {
    const auto got = DecodeRankNews(EncodeRankNews(news));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(EncodeRankNews(*got), EncodeRankNews(news));
    if (const auto* worked = std::get_if<SlotWorked>(&news)) {
      EXPECT_EQ(std::get<SlotWorked>(*got), *worked);
    }
  }
  v1::RankOrder order;
  order.set_cut(5);
  EXPECT_EQ(std::get<v1::RankOrder>(DecodeRankOrder(EncodeRankOrder(order)).value()).cut(), 5u);
  v1::RankNews news;
  news.set_lost(6);
  EXPECT_EQ(std::get<v1::RankNews>(DecodeRankNews(EncodeRankNews(news)).value()).lost(), 6u);
}

/// Of `bytes`: every beginning, and one more byte.
template <class Decode>
void OnlyWhole(const std::string& bytes, const Decode& decode) {
  ASSERT_TRUE(decode(bytes).ok()) << Hex(bytes);
  for (size_t size = 1; size < bytes.size(); ++size)
    EXPECT_TRUE(absl::IsInvalidArgument(decode(bytes.substr(0, size)).status())) << size << " of " << Hex(bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(decode(bytes + '\0').status())) << Hex(bytes);
}

TEST(RankLineCodec, ThatEndEarlyOrLateAreRefused) {
  OnlyWhole(EncodeRankOrder(Order()), [](const std::string& bytes) { return DecodeRankOrder(bytes); });
  for (const RankNews& news : SlotNews())
    OnlyWhole(EncodeRankNews(news), [](const std::string& bytes) { return DecodeRankNews(bytes); });
}

TEST(RankLineCodec, ThatAreNoneAreRefusedWithTheirSize) {
  const std::string other = EncodeRankNews(SlotNews()[0]);  // news are no order, nor an order news
  EXPECT_EQ(DecodeRankOrder(other).status().message(), "40 bytes that are no order of rank 0");
  EXPECT_EQ(DecodeRankNews(EncodeRankOrder(Order())).status().message(), "80 bytes that are no news of a rank");
  EXPECT_FALSE(DecodeRankNews(std::string("\0\x09", 2)).ok());
  EXPECT_FALSE(DecodeRankOrder("\xff").ok());
  EXPECT_FALSE(DecodeRankNews("\xff").ok());
}

// The byte of a flag is 0 or 1.
TEST(RankLineCodec, AFlagThatIsNeitherTrueNorFalseIsRefused) {
  for (const size_t at : {42u, 43u}) {  // tell, may_wait
    std::string order = EncodeRankOrder(Order());
    order[at] = '\x02';
    EXPECT_EQ(DecodeRankOrder(order).status().message(), "80 bytes that are no order of rank 0") << at;
  }
  for (const RankNews& one : {SlotNews()[0], SlotNews()[3]}) {
    std::string news = EncodeRankNews(one);
    news[34] = '\x02';  // told, ok
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRankNews(news).status())) << Hex(news);
  }
}

// A message that says it has more than its bytes hold makes nobody ask for memory.
TEST(RankLineCodec, ACountThatTheBytesDoNotHoldIsRefused) {
  std::string order = EncodeRankOrder(Order());
  for (const size_t at : {44u, 56u, 68u}) {  // segments, tables, blocks
    std::string many = order;
    many[at + 3] = '\x7f';
    EXPECT_FALSE(DecodeRankOrder(many).ok()) << at;
  }
}

}  // namespace
}  // namespace baton
