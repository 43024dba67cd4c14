// The links of ranks whose Ops compute on devices: what they compute travels from device to device, in the order of the
// Ops' calls (kernels/rank_group.h); steps and start-up go over the host.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/parallel/communicator.h"
#include "engine/parallel/rank_place.h"
#include "kernels/ops.h"

namespace baton::engine {

class DeviceLinks {
 public:
  /// Every rank of `host`'s groups calls it, and waits for the others. Ops whose memory is the host's: the same links.
  /// `ops` and the host's communicators outlive it; when one of those breaks, so does the device's.
  static absl::StatusOr<DeviceLinks> Join(kernels::Ops& ops, const RankLinks& host);

  /// For the model.
  RankLinks links() const { return links_; }
  /// How sums over ranks travel, in words for a log; empty: there is nothing to say.
  const std::string& about() const { return about_; }

 private:
  std::unique_ptr<Communicator> tensor_, stages_;
  RankLinks links_;
  std::string about_;
};

}  // namespace baton::engine
