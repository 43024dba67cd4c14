#include "kvtransfer/lane_codec.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <random>

#include "common/str_cat.h"
#include "kvtransfer/layout_codec.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

const LaneKey kKey{0x1234567890abcdef, 3, 2};

LaneHello Hello() {
  LaneHello hello{KvProtocol(), "incarnation", "digest", "numerics", {}};
  hello.side.layout.groups = {
      {.layers = {0, 2},
       .kind = KvGroupKind::kWindow,
       .window_tokens = 512,
       .planes = {{KvPlane::Name::kK, DType::kF32, 4, 64}, {KvPlane::Name::kV, DType::kBF16, 4, 64}},
       .tokens_per_block = 32},
      {.layers = {1}, .planes = {{KvPlane::Name::kLatent, DType::kF8E4M3, 1, 576}}}};
  hello.side.tensor_parallel_size = 1;
  hello.side.stage_layers = {0, 2, 3};
  return hello;
}

std::vector<LaneMessage> Everything() {
  return {Hello(),
          ToDecode(OpenLane{kKey, ~0ull, {~0ull, 1}}),
          ToDecode(SlotFull{kKey, {7, 9}, {0, 5, 4000000000}}),
          ToDecode(LaneDone{kKey, 12}),
          ToDecode(LaneClosed{kKey, false}),
          ToPrefill(LaneBound{kKey, {{1, 2}, {3, 4}}}),
          ToPrefill(LaneBound{kKey, {{1, 2}}, true}),
          ToPrefill(LaneBusy{kKey}),
          ToPrefill(LaneBusy{kKey, true}),
          ToPrefill(LaneGone{kKey, "no room"}),
          ToPrefill(SlotFree{kKey, {5, 6}, false}),
          ToPrefill(LaneVerified{kKey}),
          ToPrefill(LaneClosedAck{kKey}),
          SelfTestMessage{SelfTestMessage::Step::kFull, {5, 6}, 1 << 20, ~0ull, true, 1.5, "posix/memory put"}};
}

TEST(LaneCodec, EveryMessageComesBackAsItWas) {
  for (const LaneMessage& message : Everything()) {
    const std::string bytes = EncodeLaneMessage(message);
    const auto decoded = DecodeLaneMessage(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(EncodeLaneMessage(*decoded), bytes);
    EXPECT_EQ(decoded->index(), message.index());
  }
}

// The wire's reader refuses a message with text that is not UTF-8, so a long reason must not be cut inside a character.
TEST(LaneCodec, ALongReasonIsCutBetweenCharacters) {
  const std::string fits(4095, 'x');
  for (const auto& [reason, arrives] :
       std::vector<std::pair<std::string, std::string>>{{fits + "\u00e9", fits},
                                                        {"a\xff"
                                                         "b",
                                                         "a\ufffd"
                                                         "b"},
                                                        {std::string(5000, 'y'), std::string(4096, 'y')}}) {
    const auto gone = DecodeLaneMessage(EncodeLaneMessage(ToPrefill(LaneGone{kKey, reason})));
    ASSERT_TRUE(gone.ok()) << gone.status();
    EXPECT_EQ(std::get<LaneGone>(std::get<ToPrefill>(*gone)).reason, arrives);
    SelfTestMessage test{SelfTestMessage::Step::kFull};
    test.text = reason;
    const auto over = DecodeLaneMessage(EncodeLaneMessage(test));
    ASSERT_TRUE(over.ok()) << over.status();
    EXPECT_EQ(std::get<SelfTestMessage>(*over).text, arrives);
  }
}

TEST(LaneCodec, AHelloNamesItsDigests) {
  LaneHello hello = Hello();
  hello.kv_digest = "off";
  EXPECT_EQ(std::get<LaneHello>(*DecodeLaneMessage(EncodeLaneMessage(hello))).kv_digest, "off");
  hello.kv_digest.clear();  // older than the name
  EXPECT_EQ(std::get<LaneHello>(*DecodeLaneMessage(EncodeLaneMessage(hello))).kv_digest, "sum64");
}

// A worker of a version without them skips both fields, and says neither.
TEST(LaneCodec, AnOutboxIsNamedAndReadOnlyByThoseWhoSaySo) {
  LaneHello hello = Hello();
  EXPECT_EQ(std::get<LaneHello>(*DecodeLaneMessage(EncodeLaneMessage(hello))).outbox, "");
  hello.outbox = std::string("\xff\0card", 6);
  hello.outbox_buffer_bytes = 1 << 20;
  const auto named = std::get<LaneHello>(*DecodeLaneMessage(EncodeLaneMessage(hello)));
  EXPECT_EQ(named.outbox, hello.outbox);
  EXPECT_EQ(named.outbox_buffer_bytes, 1u << 20);
  for (const bool reads : {false, true}) {
    const auto bound = DecodeLaneMessage(EncodeLaneMessage(ToPrefill(LaneBound{kKey, {}, reads})));
    EXPECT_EQ(std::get<LaneBound>(std::get<ToPrefill>(*bound)).reads_outbox, reads);
  }
}

TEST(LaneCodec, AHelloSaysEveryVersionOfItsSender) {
  for (const ProtocolVersions& spoken : {ProtocolVersions{4, 4}, ProtocolVersions{4, 5}, ProtocolVersions{9, 12}}) {
    LaneHello hello = Hello();
    hello.protocol = spoken;
    EXPECT_EQ(std::get<LaneHello>(*DecodeLaneMessage(EncodeLaneMessage(hello))).protocol, spoken);
  }
}

TEST(LaneCodec, FieldsArriveWhereTheyBelong) {
  const auto full = DecodeLaneMessage(EncodeLaneMessage(Everything()[2]));
  const auto& slot = std::get<SlotFull>(std::get<ToDecode>(*full));
  EXPECT_EQ(slot.lane, kKey);
  EXPECT_EQ(slot.slot, (SlotTurn{7, 9}));
  EXPECT_THAT(slot.segments, testing::ElementsAre(0, 5, 4000000000));
  const auto test = DecodeLaneMessage(EncodeLaneMessage(Everything().back()));
  EXPECT_EQ(std::get<SelfTestMessage>(*test).slot, (SlotTurn{5, 6}));
  EXPECT_EQ(std::get<SelfTestMessage>(*test).gigabytes_per_second, 1.5);
  const auto hello = DecodeLaneMessage(EncodeLaneMessage(Hello()));
  EXPECT_EQ(std::get<LaneHello>(*hello).side.layout, Hello().side.layout);
  EXPECT_EQ(std::get<LaneHello>(*hello).side.stage_layers, Hello().side.stage_layers);
}

TEST(LaneCodec, AValueThatNoHealthyPeerSendsIsRefused) {
  EXPECT_FALSE(DecodeLaneMessage("").ok());
  EXPECT_FALSE(DecodeLaneMessage(EncodeLaneMessage(ToDecode(LaneDone{{0, 1, 0}, 1}))).ok()) << "ticket 0";
  EXPECT_FALSE(DecodeLaneMessage(EncodeLaneMessage(ToDecode(LaneDone{{1, 0, 0}, 1}))).ok()) << "epoch 0";
  EXPECT_FALSE(DecodeLaneMessage(EncodeLaneMessage(ToDecode(SlotFull{kKey, {1, 1}, {}}))).ok()) << "no segments";
  EXPECT_FALSE(DecodeLaneMessage(EncodeLaneMessage(ToPrefill(LaneBound{kKey, std::vector<SlotTurn>(5000)}))).ok());
  LaneHello hello = Hello();
  hello.side.layout.groups[0].planes[0].heads = 1 << 20;
  EXPECT_THAT(std::string(DecodeLaneMessage(EncodeLaneMessage(hello)).status().message()),
              HasSubstr("heads is 1048576"));
  hello = Hello();
  hello.side.tensor_parallel_size = 3;
  EXPECT_FALSE(DecodeLaneMessage(EncodeLaneMessage(hello)).ok());
  hello = Hello();
  hello.side.stage_layers.back() = (1 << 16) + 1;
  EXPECT_THAT(std::string(DecodeLaneMessage(EncodeLaneMessage(hello)).status().message()),
              HasSubstr("stage border 65537"));
}

TEST(LaneCodec, ALayoutMayBeAsLargeAsItsLimitsSay) {
  const auto refusal = [](const KvGroup& group) {
    return std::string(DecodeLayout(EncodeLayout({{group}})).status().message());
  };
  const KvGroup most{.layers = {4096},
                     .kind = KvGroupKind::kWindow,
                     .window_tokens = 1 << 24,
                     .planes = {{KvPlane::Name::kK, DType::kF32, 4096, 65536}},
                     .tokens_per_block = 1 << 24};
  EXPECT_EQ(refusal(most), "");
  KvGroup more = most;
  more.planes[0].dim = 65537;
  EXPECT_EQ(refusal(more), "kv_layout: dim is 65537, at most 65536");
  more = most;
  more.layers = {1, 1};
  EXPECT_EQ(refusal(more), "kv_layout: layer 1 after 1");
}

TEST(LaneCodec, APlaneOrAGroupOfAKindThatNobodyKnowsIsRefused) {
  KvGroup known{.layers = {0}, .planes = {{KvPlane::Name::kScale, DType::kF32, 1, 8}}, .tokens_per_block = 16};
  known.kind = KvGroupKind::kState;
  const v1::KvLayout layout = EncodeLayout({{known}});
  EXPECT_TRUE(DecodeLayout(layout).ok());
  for (const int name : {0, static_cast<int>(v1::KvPlane::NAME_SCALE) + 1}) {
    v1::KvLayout other = layout;
    other.mutable_groups(0)->mutable_planes(0)->set_name(static_cast<v1::KvPlane::Name>(name));
    EXPECT_EQ(DecodeLayout(other).status().message(), StrCat("kv_layout: plane name ", name));
  }
  for (const int kind : {0, static_cast<int>(v1::KV_GROUP_KIND_STATE) + 1}) {
    v1::KvLayout other = layout;
    other.mutable_groups(0)->set_kind(static_cast<v1::KvGroupKind>(kind));
    EXPECT_EQ(DecodeLayout(other).status().message(), StrCat("kv_layout: group kind ", kind));
  }
}

TEST(LaneCodec, EveryFlippedBitAndEveryLostByteIsAnError) {
  for (const LaneMessage& message : Everything()) {
    const std::string bytes = EncodeLaneMessage(message);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string damaged = bytes;
      damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
      EXPECT_EQ(DecodeLaneMessage(damaged).status().code(), absl::StatusCode::kDataLoss) << "bit " << bit;
    }
    for (size_t length = 0; length < bytes.size(); ++length)
      EXPECT_FALSE(DecodeLaneMessage(bytes.substr(0, length)).ok()) << length;
  }
  EXPECT_THAT(std::string(DecodeLaneMessage("0123456789").status().message()),
              HasSubstr("of 2 bytes with checksum 3736353433323130"));
}

TEST(LaneCodec, GarbageIsAnErrorOrAMessageButNeverMore) {
  google::protobuf::SetLogHandler(nullptr);  // it reports every string that is not UTF-8
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    const auto all = Everything();
    std::string bytes = EncodeLaneMessage(all[random() % all.size()]).substr(8);  // without its checksum
    for (uint64_t i = random() % 4 + 1; i > 0; --i) {
      switch (random() % 3) {
        case 0: bytes[random() % bytes.size()] = static_cast<char>(random()); break;
        case 1: bytes.resize(random() % bytes.size() + 1); break;
        default: bytes.insert(random() % bytes.size(), 1, static_cast<char>(random()));
      }
    }
    const auto decoded = DecodeLaneMessage(SealLaneMessage(bytes));
    EXPECT_TRUE(!decoded.ok() || DecodeLaneMessage(EncodeLaneMessage(*decoded)).ok());
  }
}

}  // namespace
}  // namespace baton
