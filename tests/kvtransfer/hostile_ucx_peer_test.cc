// A landing over UCX against peers that lie, by UCX's own messages: nothing is kept without end for them, and others
// come and go beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "absl/strings/escaping.h"
#include "kvtransfer/ucx/ucx_peers.h"
#include "tests/kvtransfer/liar.h"

namespace baton::ucx {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSlotBytes = 64 << 10;
const UcxOptions kLiars{.name = "ucx-tcp", .transports = "tcp", .devices = "lo"};

/// Says what a test wants to a victim, who takes his turns meanwhile.
class UcxLiar {
 public:
  explicit UcxLiar(Transport& victim) : victim_(victim), worker_(Worker::Create(kLiars).value()) {
    for (unsigned id = kHello; id <= kBye; ++id) {  // UCX dies of an answer that nobody takes
      ucp_am_handler_param_t param{};
      param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
      param.id = id;
      param.cb = [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) { return UCS_OK; };
      if (id == kHello) {
        param.field_mask |= UCP_AM_HANDLER_PARAM_FIELD_ARG;
        param.arg = &answers_;
        param.cb = [](void* answers, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
          return ++*static_cast<int*>(answers), UCS_OK;
        };
      }
      EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_->get(), &param), UCS_OK);
    }
    const std::string text = victim.address().substr(victim.address().find(':') + 1);
    address_ = PeerAddress::Parse(absl::HexStringToBytes(text)).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(address_.worker.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }
  ~UcxLiar() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* closing = ucp_ep_close_nbx(endpoint_, &param);
    while (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS)
      ucp_worker_progress(worker_->get());
    if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
  }
  UcxLiar(const UcxLiar&) = delete;
  UcxLiar& operator=(const UcxLiar&) = delete;

  PeerAddress own() const { return worker_->address(); }
  void Say(MessageKind kind, Head head, const std::string& payload) {
    if (head.incarnation == 0) head.incarnation = own().incarnation;
    if (head.number == 0) head.number = 7;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    void* sending = ucp_am_send_nbx(endpoint_, kind, &head, sizeof(head), payload.data(), payload.size(), &param);
    while (UCS_PTR_IS_PTR(sending) && ucp_request_check_status(sending) == UCS_INPROGRESS) Turn();
    if (UCS_PTR_IS_PTR(sending)) ucp_request_free(sending);
    Turn();
  }
  void Hello(uint64_t number = 7) { Say(kHello, {.number = number}, own().Pack()); }
  /// Is welcome: the victim's way back stands, too. (UCX aborts when it must destroy one that does not.)
  void Come(uint64_t number = 7) {
    const int before = answers_;
    Hello(number);
    Until([&] { return answers_ > before; });
  }
  void Turn() {
    ucp_worker_progress(worker_->get());
    victim_.Progress();
  }
  template <class Condition>
  void Until(Condition&& condition) {
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (!condition() && std::chrono::steady_clock::now() < end) Turn();
    ASSERT_TRUE(condition());
  }

 private:
  Transport& victim_;
  int answers_ = 0;  ///< greetings of the victim's
  std::unique_ptr<Worker> worker_;
  PeerAddress address_;
  ucp_ep_h endpoint_ = nullptr;
};

class HostileUcxPeer : public ::testing::Test {
 protected:
  void Start(size_t max_peers = 4096) {
    UcxOptions options = kLiars;
    options.landing = {4, kSlotBytes};
    options.max_peers = max_peers;
    victim_ = MakeUcxTransport(options, side_).value();
  }
  /// One that tells the truth comes, writes and is answered.
  void ServesOthers() {
    Side side;
    const auto friend_of_it = MakeUcxTransport(kLiars, side).value();
    const PeerNumber peer = friend_of_it->Connect(victim_->address()).value();
    const std::string bytes(kSlotBytes, 'w');
    bool landed = false;
    friend_of_it->Write(peer, {{1, 1, 0}, {2, 1}}, std::as_bytes(std::span(bytes)),
                        [&](const absl::Status& status) { landed = status.ok(); });
    baton::Until(*victim_, [&] { return friend_of_it->Progress(), landed; });
    EXPECT_EQ(std::memcmp(victim_->landing().data() + 2 * kSlotBytes, bytes.data(), bytes.size()), 0);
  }
  std::string why() const { return std::string(side_.lost_why.message()); }

  Side side_;
  std::unique_ptr<Transport> victim_;
};

TEST_F(HostileUcxPeer, WritesThatNeverEndAreNotKeptWithoutEnd) {
  Start();
  UcxLiar liar(*victim_);
  liar.Come();
  liar.Until([&] { return side_.connected.size() == 1; });
  for (uint64_t write = 1; write <= 1024; ++write) liar.Say(kWrite, {.write = write, .total = kSlotBytes}, "x");
  liar.Say(kWrite, {.write = 1, .offset = 1, .total = kSlotBytes}, "x");
  liar.Say(kMessage, {}, "behind them");
  liar.Until([&] { return side_.messages == 1; });
  EXPECT_TRUE(side_.lost.empty()) << "so many it may have: " << why();
  liar.Say(kWrite, {.write = 1025, .total = kSlotBytes}, "x");
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_EQ(why(), "more than 1024 writes are here in part");
  ServesOthers();
}

TEST_F(HostileUcxPeer, AWriteLargerThanASlotIsNotAwaited) {
  Start();
  UcxLiar liar(*victim_);
  liar.Come();
  liar.Say(kWrite, {.write = 1, .total = uint64_t{1} << 62}, "x");
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_THAT(why(), HasSubstr("a write of 4611686018427387904 bytes, slots here have 65536"));
  ServesOthers();
}

TEST_F(HostileUcxPeer, NumbersOfWritesThatAreNotWholeAreRefused) {
  Start();
  UcxLiar liar(*victim_);
  liar.Come();
  liar.Say(kLanded, {}, std::string(13, '\1'));
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_EQ(why(), "numbers of writes in 13 bytes, not a multiple of 8");
  ServesOthers();
}

TEST_F(HostileUcxPeer, APieceOutsideItsSlotIsStoredNowhere) {
  Start();
  UcxLiar liar(*victim_);
  liar.Come();
  for (const uint64_t offset : {kSlotBytes, kSlotBytes - 1, ~uint64_t{0}})
    liar.Say(kWrite, {.write = 1, .offset = offset, .total = 2, .slot = 3}, "xy");
  liar.Say(kWrite, {.write = 2, .total = 2, .slot = 4'000'000'000}, "xy");
  liar.Say(kMessage, {}, "behind them");
  liar.Until([&] { return side_.messages == 1; });
  for (const std::byte b : victim_->landing()) ASSERT_EQ(b, std::byte{0});
  ServesOthers();
}

TEST_F(HostileUcxPeer, AMessageHasALimit) {
  Start();
  UcxLiar liar(*victim_);
  liar.Come();
  liar.Say(kMessage, {}, std::string(kMaxMessageBytes + 1, 'm'));
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_EQ(side_.messages, 0);
  EXPECT_EQ(why(), "a message of 16777217 bytes, at most 16777216");
}

TEST_F(HostileUcxPeer, LandingMemoryOfAnySizeIsNotBelieved) {
  Start();
  UcxLiar liar(*victim_);
  PeerAddress lie = liar.own();
  lie.landing = {1, uint64_t{1} << 63};
  liar.Say(kHello, {}, lie.Pack());
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_THAT(why(), HasSubstr("1 landing slots of 9223372036854775808 bytes, at most 65536 of 1073741824"));
  EXPECT_TRUE(side_.connected.empty());
}

TEST_F(HostileUcxPeer, AddressesThatAreNoneAreRefused) {
  Start();
  UcxLiar liar(*victim_);
  const std::string good = liar.own().Pack();
  for (const std::string& bad : {std::string(), std::string(7, 'x'), good.substr(0, 64),
                                 good.substr(0, good.size() - 1), std::string(1000, '\xff')})
    liar.Say(kHello, {}, bad);
  liar.Until([&] { return side_.lost.size() == 5; });
  EXPECT_TRUE(side_.connected.empty());
  ServesOthers();
}

TEST_F(HostileUcxPeer, GreetingsWithoutEndTakeNoEndpointsWithoutEnd) {
  Start(/*max_peers=*/4);
  UcxLiar liar(*victim_);
  for (uint64_t number = 1; number <= 4; ++number) liar.Come(number);
  liar.Hello(5);
  liar.Until([&] { return side_.lost.size() == 1; });
  EXPECT_EQ(side_.connected.size(), 4u);
  EXPECT_EQ(why(), "4 peers have connected, at most 4");
  liar.Say(kBye, {.number = 1}, "");
  liar.Until([&] { return side_.lost.size() == 2; });
  liar.Come(6);
  EXPECT_EQ(side_.connected.size(), 5u);
}

}  // namespace
}  // namespace baton::ucx
