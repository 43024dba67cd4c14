// libFuzzer target of KV layouts from the wire: any message gives a layout or a status; a layout that is let through
// survives a round trip, and a side made of it gives a transfer plan to itself or a status.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "kvtransfer/layout_codec.h"
#include "kvtransfer/transfer_plan.h"

/// libFuzzer calls this once. Protobuf would report every string that is not UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  baton::v1::KvLayout wire;
  if (!wire.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  const auto layout = baton::DecodeLayout(wire);
  if (!layout.ok()) return 0;
  const auto again = baton::DecodeLayout(baton::EncodeLayout(*layout));
  if (!again.ok() || !baton::CheckSameMeaning(*layout, *again).ok()) std::abort();

  int layers = 0, most = 0;
  for (const baton::KvGroup& group : layout->groups) {
    for (int layer : group.layers) layers = std::max(layers, layer + 1), ++most;
  }
  if (most > 64) return 0;  // a plan is as long as its layers
  const baton::KvSide one{*layout, 1, {0, layers}}, cut{*layout, 1 << data[0] % 4, {0, layers}};
  if (!baton::CheckSide(one).ok() || !baton::CheckSide(cut).ok()) return 0;
  const auto plan = baton::TransferPlan::Make(one, cut, {0, 64}, 16);
  if (!plan.ok()) return 0;
  for (const baton::LanePlan& lane : plan->lanes()) {
    for (int s = 0; s < lane.segments; ++s) {
      if (plan->SegmentBytes(lane, s) <= 0) std::abort();
      plan->ForEachRun(lane, s, baton::TransferEnd::kTarget, [](const baton::KvRun& run) {
        if (run.tokens <= 0 || run.heads <= 0) std::abort();
      });
    }
  }
  return 0;
}
