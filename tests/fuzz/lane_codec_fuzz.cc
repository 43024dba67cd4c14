// libFuzzer target of what one worker hears from another: any bytes give a lane message or a status; what is let
// through survives a round trip, and a greeting that is let through gives a transfer plan or a status.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kvtransfer/lane_codec.h"
#include "kvtransfer/transfer_plan.h"

namespace {

/// A decode worker of a small model with a window group.
baton::KvSide Ours() {
  const std::vector<baton::KvPlane> planes = {{baton::KvPlane::Name::kK, baton::DType::kF32, 4, 8},
                                              {baton::KvPlane::Name::kV, baton::DType::kF32, 4, 8}};
  baton::KvSide side;
  side.layout.groups.push_back({{0, 2}, baton::KvGroupKind::kPaged, 0, planes, 16});
  side.layout.groups.push_back({{1, 3}, baton::KvGroupKind::kWindow, 33, planes, 64});
  side.stage_layers = {0, 4};
  return side;
}

void Greet(const baton::LaneHello& hello) {
  static const baton::KvSide ours = Ours();
  if (!baton::CheckSameMeaning(hello.side.layout, ours.layout).ok()) return;
  const auto plan = baton::TransferPlan::Make(hello.side, ours, {32, 200}, 32);
  if (!plan.ok()) return;
  int64_t bytes = 0;
  for (const baton::LanePlan& lane : plan->lanes()) {
    for (int s = 0; s < lane.segments; ++s) {
      const int64_t segment = plan->SegmentBytes(lane, s);
      if (segment <= 0) std::abort();
      bytes += segment;
    }
  }
  if (bytes <= 0) std::abort();
}

}  // namespace

/// libFuzzer calls this once. Protobuf would report every string that is not UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto message = baton::DecodeLaneMessage(baton::SealLaneMessage(body));
  if (!message.ok()) return 0;
  const std::string once = baton::EncodeLaneMessage(*message);
  const auto again = baton::DecodeLaneMessage(once);
  if (!again.ok() || baton::EncodeLaneMessage(*again) != once) std::abort();
  if (const auto* hello = std::get_if<baton::LaneHello>(&*message)) Greet(*hello);
  return 0;
}
