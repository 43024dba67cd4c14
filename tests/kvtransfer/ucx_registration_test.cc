// Landing memory by RDMA is registered for each peer by itself, and that ends with the peer. Here the code of ucx-rdma
// runs over TCP: that registrations are made, given out and ended is seen; that a device refuses a key whose
// registration has ended is the device's.
#include <gtest/gtest.h>

#include <cstring>

#include "kvtransfer/ucx/ucx_peers.h"
#include "tests/kvtransfer/liar.h"

namespace baton::ucx {
namespace {

constexpr uint64_t kSlotBytes = 64 << 10;

UcxOptions Puts(LandingShape landing) {
  return {.name = "ucx-put", .transports = "tcp", .devices = "lo", .verb = UcxVerb::kPut, .landing = landing};
}

/// Of a worker that writes: it has connected, and what it wrote is there.
struct Writer {
  Writer(Transport& reader, char with) : reader_(reader), bytes_(kSlotBytes, with) {
    transport_ = MakeUcxTransport(Puts({}), side_).value();
    peer_ = transport_->Connect(reader.address()).value();
  }
  void Write(uint32_t slot) {
    bool ended = false;
    transport_->Write(peer_, {{1, 1, 0}, {slot, 1}}, std::as_bytes(std::span(bytes_)),
                      [&](const absl::Status& status) { ended = status.ok(); });
    Until(reader_, [&] { return transport_->Progress(), ended; });
    EXPECT_EQ(std::memcmp(reader_.landing().data() + slot * kSlotBytes, bytes_.data(), kSlotBytes), 0);
  }
  void Turn() { transport_->Progress(); }
  void Leave() { transport_.reset(); }

 private:
  Transport& reader_;
  const std::string bytes_;
  Side side_;
  std::unique_ptr<Transport> transport_;
  PeerNumber peer_ = 0;
};

TEST(UcxRegistrations, EachWriterHasOneUntilItsFence) {
  Side side;
  const auto reader = MakeUcxTransport(Puts({4, kSlotBytes}), side).value();
  const auto registrations = [&] { return static_cast<UcxTransport&>(*reader).registrations(); };
  EXPECT_EQ(registrations(), 0) << "the trial of the start is over";
  Writer a(*reader, 'a'), b(*reader, 'b'), c(*reader, 'c');
  a.Write(0), b.Write(1), c.Write(2);
  ASSERT_EQ(side.connected.size(), 3u);
  EXPECT_EQ(registrations(), 3);
  int at_the_fence = -1;
  reader->Close(side.connected[0], [&] { at_the_fence = registrations(); });
  Until(*reader, [&] { return a.Turn(), at_the_fence >= 0; });
  EXPECT_EQ(at_the_fence, 2) << "the fence says that it has ended";
  b.Write(3);
  c.Leave();
  Until(*reader, [&] { return !side.lost.empty(); });
  EXPECT_EQ(registrations(), 1) << "one that is lost has none either";
  b.Write(0);
}

TEST(UcxRegistrations, WhoLandsNothingRegistersNothing) {
  Side side, other;
  const auto reader = MakeUcxTransport(Puts({4, kSlotBytes}), side).value();
  const auto writer = MakeUcxTransport(Puts({}), other).value();
  writer->Connect(reader->address()).value();
  Until(*reader, [&] { return writer->Progress(), side.connected.size() == 1; });
  EXPECT_EQ(static_cast<UcxTransport&>(*writer).registrations(), 0);
}

}  // namespace
}  // namespace baton::ucx
