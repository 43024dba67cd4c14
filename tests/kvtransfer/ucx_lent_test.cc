// Reads of lent memory by UCX: the code of ucx-rdma over TCP, with memory of the host as if it were a GPU's. That RDMA
// reaches a GPU's is the driver's and the device's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kvtransfer/ucx/ucx_peers.h"
#include "tests/kvtransfer/liar.h"

namespace baton::ucx {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSlotBytes = 64 << 10;

UcxOptions Options(LandingShape landing, UcxLends lends = UcxLends::kHost, std::string lends_not = "") {
  UcxOptions options{
      .name = "ucx-put", .transports = "tcp", .devices = "lo", .verb = UcxVerb::kPut, .landing = landing};
  options.lends = lends;
  options.lends_not = std::move(lends_not);
  return options;
}

class UcxLent : public testing::Test {
 protected:
  UcxLent() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    lender_->Connect(reader_->address()).value();
    Until(*reader_, [&] { return lender_->Progress(), side_.connected.size() == 1; });
    lent_ = lender_->Lend(memory_).value();
    EXPECT_TRUE(reader_->TakeInto(inbox_).ok());
  }
  /// How a read ended.
  absl::Status Read(std::string_view lent, uint64_t at, std::span<std::byte> to, PeerNumber peer = 0) {
    std::optional<absl::Status> ended;
    reader_->Read(peer == 0 ? side_.connected[0] : peer, lent, at, to, [&](const absl::Status& s) { ended = s; });
    EXPECT_FALSE(ended.has_value()) << "from inside Read";
    Until(*reader_, [&] { return lender_ && lender_->Progress(), ended.has_value(); });
    return *ended;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20), inbox_ = std::vector<std::byte>(1 << 18);
  Side side_, other_;
  std::unique_ptr<Transport> reader_ = MakeUcxTransport(Options({4, kSlotBytes}), side_).value(),
                             lender_ = MakeUcxTransport(Options({}), other_).value();
  std::string lent_;
};

TEST_F(UcxLent, BytesComeFromTheirPlaceToTheirs) {
  for (const auto& [at, to, bytes] : {std::tuple<size_t, size_t, size_t>{0, 0, 4096},
                                      {100, 64, 100'000},
                                      {1 << 19, 0, 1 << 18},
                                      {(1 << 20) - 8, 8, 8}}) {
    std::ranges::fill(inbox_, std::byte{0xAB});
    const absl::Status read = Read(lent_, at, std::span(inbox_).subspan(to, bytes));
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_EQ(std::memcmp(inbox_.data() + to, memory_.data() + at, bytes), 0) << at;
    EXPECT_EQ(std::ranges::count(std::span(inbox_).first(to), std::byte{0xAB}), static_cast<ptrdiff_t>(to));
    EXPECT_EQ(std::ranges::count(std::span(inbox_).subspan(to + bytes), std::byte{0xAB}),
              static_cast<ptrdiff_t>(inbox_.size() - to - bytes));
  }
}

TEST_F(UcxLent, WhatIsNotThereIsRefusedAndTheConnectionStays) {
  const std::vector<std::byte> before = inbox_;
  std::vector<std::byte> unknown(16);
  const std::span<std::byte> to = std::span(inbox_).first(16);
  for (const absl::Status& refused : {Read(lent_, (1 << 20) - 15, to), Read(lent_, ~0ull, to), Read("short", 0, to),
                                      Read(lent_, 0, unknown), Read(lent_, 0, to, 4711)})
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(inbox_, before);
  EXPECT_TRUE(Read(lent_, 0, to).ok());
  EXPECT_TRUE(side_.lost.empty());
}

TEST_F(UcxLent, AReadOfOneWhoIsGoneFailsBeforeHeIsLostAndHeIsFenced) {
  lender_.reset();
  std::optional<absl::Status> ended;
  reader_->Read(side_.connected[0], lent_, 0, std::span(inbox_).first(4096), [&](const absl::Status& status) {
    ended = status;
    EXPECT_TRUE(side_.lost.empty());
  });
  Until(*reader_, [&] { return side_.lost.size() == 1; });
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok() || absl::IsInvalidArgument(*ended)) << *ended;
  bool fenced = false;
  reader_->Close(side_.connected[0], [&] { fenced = true; });
  Until(*reader_, [&] { return fenced; });
}

TEST_F(UcxLent, CloseEndsReadsWithAnError) {
  std::optional<absl::Status> ended;
  bool fenced = false;
  reader_->Read(side_.connected[0], lent_, 0, inbox_, [&](const absl::Status& status) { ended = status; });
  reader_->Close(side_.connected[0], [&] { fenced = true; });
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  Until(*reader_, [&] { return lender_->Progress(), fenced; });
}

TEST(UcxLends, WhatCannotBeLentSaysWhy) {
  Side side;
  std::vector<std::byte> memory(4096);
  const auto lend = [&](const UcxOptions& options) {
    const auto transport = MakeUcxTransport(options, side).value();
    EXPECT_EQ(transport->TakeInto(memory), transport->Lend(memory).status());
    return transport->Lend(memory).status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(lend(Options({}, UcxLends::kNone))));
  const absl::Status why = lend(Options({}, UcxLends::kNone, "no RDMA device"));
  EXPECT_TRUE(absl::IsFailedPrecondition(why));
  EXPECT_EQ(why.message(), "no RDMA device");
  if (const absl::Status cuda = RdmaReachesCuda(); !cuda.ok()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(cuda));
    EXPECT_THAT(std::string(cuda.message()), testing::AnyOf(HasSubstr("UCX 1."), HasSubstr("no RDMA device")));
  }
}

}  // namespace
}  // namespace baton::ucx
