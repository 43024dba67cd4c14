// What a network's device reads out of a GPU's outbox and writes into another's inbox: where they lie, and when it is
// seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/kv_mover.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/device_rooms.h"
#include "kernels/runtime/network_writes.h"

namespace baton::kernels {
namespace {

constexpr size_t kRoom = 8192;

class NetworkReads : public testing::Test {
 protected:
  /// As UCX would.
  void ReadMark() {
    const KvDeviceRooms lent = from_->rooms(), own = to_->rooms();
    gpu::WriteAsNetwork(own.inbox.data(), lent.outbox.data() + lent.outbox.size() - lent.mark.size(), lent.mark.size());
  }
  std::string Head(size_t bytes) {
    std::string head(bytes, 'x');
    const absl::Status seen = to_->SeeInbox(std::as_writable_bytes(std::span(head)));
    return seen.ok() ? head : std::string(seen.message());
  }
  const std::unique_ptr<Ops> ops_ = *MakeCudaOps({});
  const std::unique_ptr<KvMover> from_ = *ops_->MakeKvMover(kRoom, true), to_ = *ops_->MakeKvMover(kRoom, true);
};

TEST_F(NetworkReads, RoomsAreOfTheDeviceAndTheOutboxEndsWithItsMark) {
  const KvDeviceRooms rooms = from_->rooms();
  EXPECT_EQ(rooms.outbox.size(), static_cast<size_t>(OutboxBytes(kRoom)));
  EXPECT_EQ(rooms.inbox.size(), kRoom);
  EXPECT_EQ(rooms.mark.size(), static_cast<size_t>(device_sizes::kOutboxMark));
  to_->ClearInbox(rooms.mark.size());
  ReadMark();
  EXPECT_EQ(Head(rooms.mark.size()), rooms.mark);
  to_->ClearInbox(16);
  EXPECT_EQ(Head(20), std::string(16, '\0') + rooms.mark.substr(16, 4)) << "nothing of what was there";
}

TEST_F(NetworkReads, AreSeenWhenTheGpuIsAskedToAndNotBefore) {
  const size_t bytes = from_->rooms().mark.size();
  to_->ClearInbox(bytes);
  EXPECT_EQ(Head(bytes), std::string(bytes, '\0'));
  ReadMark();
  gpu::RefuseNetworkWrites("it cannot be flushed");
  EXPECT_EQ(Head(bytes), "it cannot be flushed");
  gpu::RefuseNetworkWrites("");
  EXPECT_EQ(Head(bytes), from_->rooms().mark);
}

TEST_F(NetworkReads, WithoutAnInboxThereIsNothingToRead) {
  const auto without = *ops_->MakeKvMover(kRoom, false);
  EXPECT_TRUE(without->rooms().outbox.empty() && without->rooms().inbox.empty());
  EXPECT_TRUE(absl::IsFailedPrecondition(without->SeeInbox({})));
}

}  // namespace
}  // namespace baton::kernels
