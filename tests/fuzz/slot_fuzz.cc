// libFuzzer target of a landing slot and the pass that places it. The input is a slot's bytes, or, when it begins with
// '+', edits of a valid one after which header and table are made to fit again, as a peer gone mad would: the first
// byte says how many segments the table has, then (segment, bytes) pairs, then payload edits. Either way: a status, and
// nothing outside the blocks of the wanted segments is touched.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/kv_digest.h"
#include "kvtransfer/slot_passes.h"

namespace {

using namespace baton;

constexpr int kTokens = 96, kBlocks = 10, kTokensPerBlock = 16, kHeads = 2, kDim = 4;
constexpr size_t kSlotBytes = 16384, kVector = kDim * 4, kBlockBytes = kTokensPerBlock * kHeads * kVector;
const LaneKey kLane{9, 1, 0};

/// One layer's K and V; blocks 0 and 9 are another sequence's.
struct Pool {
  Pool() : bytes(2 * kBlocks * kBlockBytes), digests(2 * kBlocks * kHeads) {
    KvPoolView::Group group{.layers = {0}, .planes = {{}}, .blocks = kBlocks};
    for (size_t p = 0; p < 2; ++p) {
      group.planes[0].push_back({bytes.data() + p * kBlocks * kBlockBytes, static_cast<int64_t>(kBlockBytes),
                                 digests.data() + p * kBlocks * kHeads, kHeads});
    }
    view.groups.push_back(group);
    for (int b = 1; b <= kTokens / kTokensPerBlock; ++b) tables[0].push_back(b);
  }
  /// Zeros in the sequence's blocks, and the digests that a model would have kept of them.
  void Compute() {
    Fill(std::byte{0});
    for (uint32_t p = 0; p < 2; ++p) {
      for (uint32_t token = 0; token < kTokens; ++token) {
        for (uint32_t head = 0; head < kHeads; ++head) {
          const size_t block = p * kBlocks + 1 + token / kTokensPerBlock;
          digests[block * kHeads + head] +=
              KvDigestVector({0, p, head, token}, bytes.data() + block * kBlockBytes, kVector);
        }
      }
    }
  }
  void Fill(std::byte with) {
    std::fill(bytes.begin(), bytes.end(), with), std::fill(digests.begin(), digests.end(), 0);
  }
  std::vector<std::byte> bytes;
  std::vector<uint64_t> digests;
  KvPoolView view;
  KvBlockTables tables{1};
};

KvSide Side() {
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, DType::kF32, kHeads, kDim},
                                       {KvPlane::Name::kV, DType::kF32, kHeads, kDim}};
  KvSide side;
  side.layout.groups.push_back({{0}, KvGroupKind::kPaged, 0, planes, kTokensPerBlock});
  side.stage_layers = {0, 1};
  return side;
}

std::vector<std::byte> Edited(const std::vector<std::byte>& valid, const uint8_t* data, size_t size) {
  std::vector<std::byte> slot = valid;
  std::vector<SlotSegment> table(size > 0 ? data[0] % 8 : 0);
  size_t at = 1;
  for (SlotSegment& segment : table) {
    if (at + 3 > size) break;
    segment.segment = data[at],
    segment.bytes = static_cast<uint64_t>(data[at + 1]) | static_cast<uint64_t>(data[at + 2]) << 8;
    at += 3;
  }
  for (; at + 2 < size; at += 3)
    slot[(data[at] | data[at + 1] << 8) % slot.size()] = static_cast<std::byte>(data[at + 2]);
  if (SlotBytes(table) <= slot.size()) (void)BeginSlot(slot, kLane, 1, table);
  return slot;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Pool pool;
  static const TransferPlan plan = TransferPlan::Make(Side(), Side(), {0, kTokens}, 32).value();
  static const std::vector<std::byte> valid = [] {
    std::vector<std::byte> slot(kSlotBytes);
    pool.Compute();
    const std::vector<uint32_t> all{0, 1, 2};
    if (!GatherSlot(plan, plan.lanes()[0], kLane, 1, all, pool.view, pool.tables, slot).ok()) std::abort();
    return slot;
  }();
  const bool edit = size > 0 && data[0] == '+';
  std::vector<std::byte> slot = edit ? Edited(valid, data + 1, size - 1) : std::vector<std::byte>();
  if (!edit)
    slot.assign(reinterpret_cast<const std::byte*>(data),
                reinterpret_cast<const std::byte*>(data) + std::min(size, kSlotBytes));
  const auto content = ReadSlot(slot, kLane, 1);
  if (!content.ok()) return 0;
  pool.Fill(std::byte{0x5a});
  const std::vector<uint32_t> wanted{1};
  (void)VerifyAndScatterSlot(plan, plan.lanes()[0], *content, wanted, pool.view, pool.tables);
  for (size_t i = 0; i < pool.bytes.size(); ++i) {
    const size_t block = i % (kBlocks * kBlockBytes) / kBlockBytes;
    if (block != 3 && block != 4 && pool.bytes[i] != std::byte{0x5a}) std::abort();  // positions 32 to 63
  }
  return 0;
}
