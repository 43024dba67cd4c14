#include "engine/parallel/device_communicator.h"

#include <utility>

#include "common/status.h"

namespace baton::engine {
namespace {

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(int rank, int size, std::shared_ptr<kernels::RankGroup> group)
      : Communicator(rank, size), group_(std::move(group)) {}

  bool on_device() const override { return true; }
  absl::Status Reserve(int64_t floats) override { return group_->Reserve(floats); }
  absl::Status Send(int to, std::span<const std::byte> data) override {
    return group_->Send(to, data.data(), data.size());
  }
  absl::Status Recv(int from, std::span<std::byte> data) override {
    return group_->Recv(from, data.data(), data.size());
  }
  absl::Status Broadcast(int root, std::span<std::byte> data) override {
    return group_->Broadcast(root, data.data(), data.size());
  }
  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return group_->AllGather(mine.data(), mine.size(), all.data());
  }
  absl::Status TreeAllReduce(std::span<float> data) override {
    return group_->TreeAllReduce(data.data(), static_cast<int64_t>(data.size()));
  }
  absl::Status health() override { return group_->health(); }
  void Abort(const absl::Status& why) override { group_->Abort(why); }

 private:
  const std::shared_ptr<kernels::RankGroup> group_;
};

absl::StatusOr<std::unique_ptr<Communicator>> JoinAs(kernels::Ops& ops, Communicator& host, bool sums,
                                                     std::string* about) {
  const auto gather = [&](std::span<const std::byte> mine, std::span<std::byte> all) {
    return host.AllGather(mine, all);
  };
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<kernels::RankGroup> group,
                         ops.JoinGroup({host.rank(), host.size(), gather, sums}));
  if (group == nullptr) return nullptr;
  if (sums) *about = group->about();
  host.OnBroken([weak = std::weak_ptr(group)](const absl::Status& why) {
    if (const auto alive = weak.lock()) alive->Abort(why);
  });
  return std::make_unique<DeviceCommunicator>(host.rank(), host.size(), std::move(group));
}

}  // namespace

absl::StatusOr<DeviceLinks> DeviceLinks::Join(kernels::Ops& ops, const RankLinks& host) {
  DeviceLinks out;
  out.links_ = host;
  if (host.world != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.stages_, JoinAs(ops, *host.world, false, nullptr));
    if (out.stages_ == nullptr) return out;
    out.links_.stages = out.stages_.get();
  }
  if (host.tensor != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.tensor_, JoinAs(ops, *host.tensor, true, &out.about_));
    out.links_.tensor = out.tensor_.get();
  }
  return out;
}

}  // namespace baton::engine
