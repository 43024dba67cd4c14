// A peer may write a slot at any time, also while it is placed. The slot here lies in memory that changes at the worst
// moment: the first read behind a page's end flips every payload bit before it. Whatever is placed then as good must be
// what was verified.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "common/check.h"
#include "known_kv.h"

namespace baton {
namespace {

std::string_view planted;

/// One at a time: the handler of its faults is the process's.
class ChangingMemory {
 public:
  ChangingMemory() {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, kPages * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    armed = this;
    struct sigaction action{};
    action.sa_handler = [](int) { armed->Change(); };
    BATON_CHECK(sigaction(SIGSEGV, &action, &before_) == 0);
  }
  ~ChangingMemory() {
    BATON_CHECK(sigaction(SIGSEGV, &before_, nullptr) == 0);
    munmap(memory_, kPages * page_);
  }
  /// `slot`, with a page's end behind its first `before` bytes; the first `keep` of them never change.
  std::span<const std::byte> Hold(const std::vector<std::byte>& slot, size_t before, size_t keep) {
    BATON_CHECK(mprotect(memory_, kPages * page_, PROT_READ | PROT_WRITE) == 0);
    end_ = memory_ + kPages / 2 * page_;
    BATON_CHECK(before <= kPages / 2 * page_ && slot.size() - before <= kPages / 2 * page_);
    std::byte* first = end_ - before;
    std::memcpy(first, slot.data(), slot.size());
    changing_ = first + keep;
    return {first, slot.size()};
  }
  void Arm() { BATON_CHECK(mprotect(end_, kPages / 2 * page_, PROT_NONE) == 0); }

 private:
  static constexpr size_t kPages = 16;
  void Change() {
    if (mprotect(end_, kPages / 2 * page_, PROT_READ | PROT_WRITE) != 0) _exit(1);
    for (std::byte* at = changing_; at < end_; ++at) *at ^= std::byte{0xff};
  }
  static ChangingMemory* armed;
  size_t page_ = 0;
  std::byte *memory_ = nullptr, *end_ = nullptr, *changing_ = nullptr;
  struct sigaction before_{};
};
ChangingMemory* ChangingMemory::armed = nullptr;

/// Each of the target's planes has a second piece with the same heads, as where there are more ranks than KV heads.
class Copies {
 public:
  explicit Copies(const KvPoolView& pool) : view(pool) {
    for (KvPoolView::Group& group : view.groups) {
      for (auto& planes : group.planes) {
        for (KvPlaneMemory& plane : planes) {
          plane.heads = {0, kHeads};
          KvPlaneMemory copy = plane;
          bytes_.emplace_back(static_cast<size_t>(plane.block_stride_bytes * kBlocks));
          digests_.emplace_back(static_cast<size_t>(plane.digest_block_stride * kBlocks));
          copy.base = bytes_.back().data(), copy.digests = digests_.back().data(), copy.copy = true;
          plane.others = {copy};
        }
      }
    }
  }
  /// Whether block `b` of a plane is in the copy what it is in the first piece.
  static bool Same(const KvPlaneMemory& plane, int64_t b) {
    const KvPlaneMemory& copy = plane.others[0];
    const auto bytes = static_cast<size_t>(plane.block_stride_bytes);
    return std::memcmp(plane.base + b * plane.block_stride_bytes, copy.base + b * plane.block_stride_bytes, bytes) == 0;
  }
  KvPoolView view;

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<uint64_t>> digests_;
};

/// How often a segment was taken as good and is not what was computed, over all places where its slot may change.
struct Counts {
  int good = 0, wrong = 0;
};

Counts PlaceWhileItChanges(DType from, DType to, bool copies) {
  Counts counts;
  ChangingMemory memory;
  Transfer t(Side(1, 1, 16, from), Side(1, 1, 16, to), {0, 32});
  const std::vector<uint32_t> segments = {0};
  const auto slot = t.Gather(0, segments);  // layer 0, positions 0 … 31, both planes
  BATON_CHECK(slot.ok());
  const size_t header = SlotOverheadBytes(1), vector = kDim * DTypeBytes(from);
  const auto payload = static_cast<size_t>(t.plan.SegmentBytes(t.plan.lanes()[0], 0));
  // Where it converts, amid a vector: between digest and conversion. Else between tokens.
  const size_t step = copies ? vector * kHeads : vector;
  for (size_t before = copies ? step : vector / 2; before < payload; before += step) {
    RankPool target(t.plan.target(), 0, 32, 7);
    const Copies doubled(target.view());
    const auto held = memory.Hold(*slot, header + before, header);
    const auto content = ReadSlot(held, t.Key(0), 3);
    BATON_CHECK(content.ok());
    memory.Arm();
    const absl::Status placed = VerifyAndScatterSlot(t.plan, t.plan.lanes()[0], *content, segments,
                                                     copies ? doubled.view : target.view(), target.tables());
    if (!placed.ok()) continue;
    ++counts.good;
    bool right = target.Wrong({0, 1}, 0, 32) == 0;
    for (const KvPlaneMemory& plane : doubled.view.groups[0].planes[0]) {
      for (const int32_t block : target.tables()[0]) right &= !copies || Copies::Same(plane, block);
    }
    counts.wrong += !right;
  }
  return counts;
}

class PlacerReadsOnce : public ::testing::TestWithParam<bool> {
 protected:
  ~PlacerReadsOnce() override { planted = ""; }
};

TEST_P(PlacerReadsOnce, PayloadsThatItConverts) {
  planted = GetParam() ? "double fetch" : "";
  for (const auto& [from, to] : {std::pair{DType::kF32, DType::kBF16}, {DType::kBF16, DType::kF32}}) {
    const Counts counts = PlaceWhileItChanges(from, to, /*copies=*/false);
    EXPECT_GT(counts.good, 0);
    EXPECT_EQ(counts.wrong > 0, GetParam()) << counts.wrong << " of " << counts.good;
  }
}

TEST_P(PlacerReadsOnce, PayloadsThatItPlacesAsTheyAre) {
  EXPECT_EQ(PlaceWhileItChanges(DType::kF32, DType::kF32, /*copies=*/false).wrong, 0);
}

TEST_P(PlacerReadsOnce, HeadsThatSeveralRanksHave) {
  planted = GetParam() ? "double fetch" : "";
  for (const DType to : {DType::kF32, DType::kBF16}) {
    const Counts counts = PlaceWhileItChanges(DType::kF32, to, /*copies=*/true);
    EXPECT_EQ(counts.wrong > 0, GetParam()) << counts.wrong << " of " << counts.good;
    EXPECT_GT(counts.good, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Bug, PlacerReadsOnce, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "planted" : "none"; });

}  // namespace

std::string_view PlantedBugInForce() { return planted; }

}  // namespace baton
