// The bytes of the data plane, as two builds of different days must both write and read them. The hexadecimal text was
// put together by hand from the documented layouts (XXH3 by another implementation), never by the code under test. A
// change here is another wire format: it needs another protocol number.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <numeric>

#include "common/kv_digest.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/layout_codec.h"
#include "kvtransfer/slot_format.h"
#include "kvtransfer/tcp/frame.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "kvtransfer/transfer_plan.h"
#include "tests/hex.h"

namespace baton {
namespace {

// ---- frames

constexpr const char* kWriteFrame =
    "4241544e"           // magic: "BATN"
    "03000000"           // kind: write
    "0807060504030201"   // payload bytes
    "1817161514131211"   // ticket
    "24232221"           // epoch
    "34333231"           // lane
    "44434241"           // slot
    "54535251"           // turn
    "0a1975f3cbd5c64a";  // XXH3-64 of the 40 bytes before

TEST(WireGolden, AFrameHeader) {
  tcp::FrameHeader header{.kind = tcp::FrameKind::kWrite,
                          .payload_bytes = 0x0102030405060708,
                          .ticket = 0x1112131415161718,
                          .epoch = 0x21222324,
                          .lane = 0x31323334,
                          .slot = 0x41424344,
                          .turn = 0x51525354};
  tcp::Seal(header);
  EXPECT_EQ(Hex(std::as_bytes(std::span(&header, 1))), kWriteFrame);
  EXPECT_TRUE(tcp::Sealed(header));
}

// What a transport tells its owner.
struct Heard : TransportEvents {
  void OnConnected(PeerNumber) override { ++connected; }
  void OnMessage(PeerNumber, std::string_view message) override { messages.emplace_back(message); }
  void OnLost(PeerNumber, const absl::Status& why) override { lost = why; }
  bool MayLand(PeerNumber, const LandingPlace& place) override {
    places.push_back(place);
    return true;
  }
  int connected = 0;
  std::vector<std::string> messages;
  std::vector<LandingPlace> places;
  absl::Status lost;
};

// The next `size` bytes that the transport sends on this connection, or fewer when they do not come.
std::string Receive(int socket, Transport& transport, size_t size) {
  std::string bytes;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (bytes.size() < size && std::chrono::steady_clock::now() < deadline) {
    transport.Progress();
    char buffer[256];
    const ssize_t got = recv(socket, buffer, std::min(size - bytes.size(), sizeof buffer), MSG_DONTWAIT);
    if (got > 0) bytes.append(buffer, static_cast<size_t>(got));
  }
  return bytes;
}

TEST(WireGolden, AWholeConversationOverTcp) {
  Heard heard;
  auto transport = TcpTransport::Create({.landing = {2, 4096}}, heard);
  ASSERT_TRUE(transport.ok()) << transport.status();
  const auto socket = tcp::Dial((*transport)->address().substr(4));
  ASSERT_TRUE(socket.ok()) << socket.status();
  const int64_t pid = getpid();
  EXPECT_EQ(Hex(Receive(*socket, **transport, 72)),
            "4241544e"          // magic: "BATN"
            "01000000"          // kind: hello
            "1800000000000000"  // payload bytes: 24
            "0000000000000000"  // ticket: none
            "00000000000000000000000000000000"
            "9c4c553a0cf97cfc"  // XXH3-64
            "0200000000000000"  // slots
            "0010000000000000"  // bytes of a slot
                + Hex(std::as_bytes(std::span(&pid, 1))));
  const std::string ours = Unhex(
      "4241544e 01000000 1800000000000000 0000000000000000 00000000000000000000000000000000 9c4c553a0cf97cfc"
      "0000000000000000 0000000000000000 0100000000000000"  // no landing memory, pid 1
      "4241544e 02000000 0200000000000000 0000000000000000 00000000000000000000000000000000 84fc5222f627500c"
      "6869"  // a message: "hi"
      "4241544e 03000000 0300000000000000 0700000000000000 02000000 01000000 01000000 09000000 466ee9ae5d74f57e"
      "aabbcc"  // a write: ticket 7, epoch 2, lane 1, slot 1, turn 9
      "4241544e 04000000 0000000000000000 0500000000000000 00000000000000000000000000000000 3d2ce519be6c6c3c");
  ASSERT_EQ(send(*socket, ours.data(), ours.size(), MSG_NOSIGNAL), static_cast<ssize_t>(ours.size()));
  EXPECT_EQ(Hex(Receive(*socket, **transport, 48)),
            "4241544e"          // magic
            "05000000"          // kind: flushed
            "0000000000000000"  // no payload
            "0500000000000000"  // the number that was asked about
            "00000000000000000000000000000000"
            "556934b6e580efe4");
  EXPECT_EQ(heard.connected, 1);
  EXPECT_EQ(heard.messages, std::vector<std::string>{"hi"});
  ASSERT_GE(heard.places.size(), 1u);
  EXPECT_EQ(heard.places[0].lane, (LaneKey{7, 2, 1}));
  EXPECT_EQ(heard.places[0].slot, (SlotTurn{1, 9}));
  EXPECT_EQ(Hex((*transport)->landing().subspan(4096, 4)), "aabbcc00");
  EXPECT_TRUE(heard.lost.ok()) << heard.lost;
  close(*socket);
}

// ---- slots

TEST(WireGolden, ASlotsHeaderAndTable) {
  constexpr const char* kSlot =
      "42544e534c4f5431"  // magic: "BTNSLOT1"
      "0807060504030201"  // ticket
      "02000000"          // epoch
      "01000000"          // lane
      "09000000"          // turn
      "02000000"          // segments
      "c3738e6bd40e18a6"  // XXH3-64 of the above and XXH3-64 of the table
      "0300000000000000"  // segment 3 of the lane, padding
      "6400000000000000"  // its bytes: 100
      "1817161514131211"  // digest of the KV as it was computed
      "2827262524232221"  // digest of the bytes as they were sent
      "0500000000000000"  // segment 5
      "4000000000000000"
      "0d00000000000000"
      "0e00000000000000";
  const LaneKey lane{0x0102030405060708, 2, 1};
  const std::vector<SlotSegment> segments = {{3, 0, 100, 0x1112131415161718, 0x2122232425262728}, {5, 0, 64, 13, 14}};
  std::vector<std::byte> slot(1024);
  const auto payloads = BeginSlot(slot, lane, 9, segments);
  ASSERT_TRUE(payloads.ok()) << payloads.status();
  EXPECT_EQ(Hex(std::span(slot).first(104)), kSlot);
  EXPECT_EQ((*payloads)[0].data() - slot.data(), 128) << "payloads begin at multiples of 64";
  EXPECT_EQ((*payloads)[1].data() - slot.data(), 256);
  EXPECT_EQ(SlotBytes(segments), 320u);
  std::string bytes = Unhex(kSlot);
  bytes.resize(320);
  const auto content = ReadSlot(std::as_bytes(std::span(bytes)), lane, 9);
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_EQ(content->parts[0].segment.source_digest, 0x1112131415161718u);
  EXPECT_EQ(content->parts[0].segment.wire_digest, 0x2122232425262728u);
  EXPECT_EQ(content->parts[1].segment.segment, 5u);
}

// ---- lane messages

struct Golden {
  const char* name;
  LaneMessage message;
  const char* checksum;  ///< XXH3-64 of the body
  const char* body;      ///< proto/lanes.proto
};

KvLayout TheLayout() {
  KvLayout layout;
  layout.groups = {{.layers = {0, 2},
                    .kind = KvGroupKind::kWindow,
                    .window_tokens = 512,
                    .planes = {{KvPlane::Name::kK, DType::kF32, 4, 64}, {KvPlane::Name::kV, DType::kBF16, 4, 64}},
                    .tokens_per_block = 32},
                   {.layers = {1}, .planes = {{KvPlane::Name::kLatent, DType::kF8E4M3, 1, 576}}}};
  return layout;
}

constexpr const char* kLayout =
    "0a2e"                                        // a group of 46 bytes
    "0a020002"                                    // layers 0, 2
    "1002 188004"                                 // window, of 512 tokens
    "220f 0801 1207666c6f61743332 1804 2040"      // K: "float32", 4 heads of 64
    "2210 0802 120862666c6f61743136 1804 2040"    // V: "bfloat16"
    "2820"                                        // 32 tokens a block
    "0a1a"                                        // a group of 26 bytes
    "0a0101 1001"                                 // layer 1, paged
    "2211 0803 12086670385f65346d33 1801 20c004"  // latent: "fp8_e4m3", 1 head of 576
    "2810";

std::vector<Golden> LaneMessages() {
  const LaneKey key{0x1234567890abcdef, 3, 2};
  LaneHello hello{{4, 4}, "incarnation", "digest", "numerics", {}};
  hello.kv_digest = "sum64";
  hello.side.layout = TheLayout();
  hello.side.tensor_parallel_size = 1;
  hello.side.stage_layers = {0, 2, 3};
  LaneHello lender = hello;
  lender.outbox = std::string("\xff\0ob", 4);
  lender.outbox_buffer_bytes = 1 << 20;
#define KEY "0a0e 08ef9baf8589cf959a12 1003 1802 "  // ticket, epoch 3, lane 2
  return {
      {"open", ToDecode(OpenLane{key, ~0ull, {1, 2}}), "368fb2b59f083786",
       KEY "1a1d 08ffffffffffffffffff01 110100000000000000 190200000000000000"},
      {"slot full", ToDecode(SlotFull{key, {7, 9}, {0, 5, 4000000000}}), "b2bef34156cbabd3",
       KEY "220f 0a04 0807 1009 1207 00 05 80d0acf30e"},
      {"done", ToDecode(LaneDone{key, 12}), "3436bd50f881409d", KEY "2a02 080c"},
      {"closed", ToDecode(LaneClosed{key, true, {1, 2}}), "b97b714f190445d0",
       KEY "3214 0801 110100000000000000 190200000000000000"},
      {"bound", ToPrefill(LaneBound{key, {{1, 2}, {3, 4}}}), "4340ba07c3ddbccf",
       KEY "3a0c 0a04 0801 1002 0a04 0803 1004"},
      {"bound, reads the outbox", ToPrefill(LaneBound{key, {{1, 2}}, true}), "a56d8c729451220a",
       KEY "3a08 0a04 0801 1002 1001"},
      {"busy", ToPrefill(LaneBusy{key}), "86aea0c564e811cb", KEY "4200"},
      {"gone", ToPrefill(LaneGone{key, "no room"}), "d28d6ee039c897f5", KEY "4a09 0a07 6e6f20726f6f6d"},
      {"slot free", ToPrefill(SlotFree{key, {5, 6}, true}), "ec91625d961d76ee", KEY "5208 0a04 0805 1006 1001"},
      {"verified", ToPrefill(LaneVerified{key}), "322bbf84b3a7b0ce", KEY "5a00"},
      {"closed ack", ToPrefill(LaneClosedAck{key}), "126791ef5026bbdb", KEY "6200"},
      {"self-test",
       SelfTestMessage{SelfTestMessage::Step::kFull, {5, 6}, 1 << 20, 0x0102030405060708, true, 1.5, "memory put"},
       "9c28da66c9f41c97",
       "6a2c 0803 1204 0805 1006 18808040 210807060504030201 2801 31000000000000f83f"
       "3a0a 6d656d6f727920707574"},
      {"hello", hello, "6a708b4eb14df36e",
       "127d 0804 120b 696e6361726e6174696f6e 1a06 646967657374 224c"
       "0a2e0a0200021002188004220f08011207666c6f617433321804204022100802120862666c6f617431361804204028200a1a0a0101"
       "10012211080312086670385f65346d33180120c0042810"
       "2801 3203000203 3a08 6e756d6572696373 4205 73756d3634"},
      {"hello, with an outbox", lender, "cf5c882995dbc4a4",
       "128701 0804 120b 696e6361726e6174696f6e 1a06 646967657374 224c"
       "0a2e0a0200021002188004220f08011207666c6f617433321804204022100802120862666c6f617431361804204028200a1a0a0101"
       "10012211080312086670385f65346d33180120c0042810"
       "2801 3203000203 3a08 6e756d6572696373 4205 73756d3634"
       "5204 ff006f62 58808040"},
  };
#undef KEY
}

TEST(WireGolden, EveryLaneMessage) {
  const std::vector<Golden> all = LaneMessages();
  EXPECT_EQ(all.size(), std::variant_size_v<ToDecode> + std::variant_size_v<ToPrefill> + 2 + 2)
      << "one has no golden bytes";
  for (const Golden& golden : all) {
    const std::string expected = Digits(golden.checksum) + Digits(golden.body);
    EXPECT_EQ(Hex(EncodeLaneMessage(golden.message)), expected) << golden.name;
    const auto decoded = DecodeLaneMessage(Unhex(expected));
    ASSERT_TRUE(decoded.ok()) << golden.name << ": " << decoded.status();
    EXPECT_EQ(decoded->index(), golden.message.index()) << golden.name;
    EXPECT_EQ(Hex(EncodeLaneMessage(*decoded)), expected) << golden.name;
  }
  EXPECT_EQ(KvProtocol().max, 4u) << "another protocol: are these still its bytes?";
}

TEST(WireGolden, ALayout) {
  EXPECT_EQ(Hex(EncodeLayout(TheLayout()).SerializeAsString()), Digits(kLayout));
  v1::KvLayout wire;
  ASSERT_TRUE(wire.ParseFromString(Unhex(kLayout)));
  const auto layout = DecodeLayout(wire);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(*layout, TheLayout());
}

TEST(WireGolden, EveryKindOfALayoutComesBack) {
  const auto comes_back = [](const KvLayout& layout) {
    const auto decoded = DecodeLayout(EncodeLayout(layout));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, layout);
  };
  KvLayout layout = TheLayout();
  for (const auto name : {KvPlane::Name::kK, KvPlane::Name::kV, KvPlane::Name::kLatent, KvPlane::Name::kScale})
    layout.groups[0].planes[0].name = name, comes_back(layout);
  for (int type = 0; type <= static_cast<int>(DType::kU8); ++type)
    layout.groups[0].planes[0].dtype = static_cast<DType>(type), comes_back(layout);
  for (const auto kind : {KvGroupKind::kPaged, KvGroupKind::kState}) layout.groups[0].kind = kind, comes_back(layout);
}

// ---- digests that both ends compute

TEST(WireGolden, TheKvDigestIsAFixedFunction) {
  if (!kMakesKvDigests) GTEST_SKIP() << "a build that makes no KV digests, for measuring";
  std::vector<uint8_t> vector(32);
  std::iota(vector.begin(), vector.end(), uint8_t{0});
  EXPECT_EQ(KvDigestVector({.layer = 3, .plane = 1, .head = 5, .token = 70}, vector.data(), 32), 899175817936284533u);
  const uint64_t one = 1;
  EXPECT_EQ(KvDigestVector({.layer = 0, .plane = 0, .head = 0, .token = 1}, &one, 8), 1335712088367393275u);
}

TEST(WireGolden, ThePlanDigestIsAFixedFunction) {
  KvSide source, target;
  source.layout = TheLayout();
  source.tensor_parallel_size = 1;
  source.stage_layers = {0, 2, 3};
  target.layout = TheLayout();
  target.layout.groups[0].planes[0].dtype = DType::kBF16;
  for (KvGroup& group : target.layout.groups) group.tokens_per_block = 64;
  target.tensor_parallel_size = 2;
  target.stage_layers = {0, 3};
  const auto plan = TransferPlan::Make(source, target, {16, 200}, 64);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->digest(), 0x342ea08cab2b0ae4u);
}

TEST(WireGolden, TheBytesOfASelfTest) {
  std::vector<std::byte> bytes(20);
  FillTestPattern(0x0102030405060708, bytes);
  EXPECT_EQ(Hex(bytes), "4a166ec0da89e5be6b23e5ee90c57beb586b8606");
  EXPECT_TRUE(IsTestPattern(0x0102030405060708, bytes));
}

}  // namespace
}  // namespace baton
