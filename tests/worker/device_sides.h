// Two workers' models and KV, on CPUs and on (emulated) GPUs, and the transfer of a prompt between them slot by slot:
// by what a transport carries, or by CUDA IPC.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kvtransfer/slot_format.h"
#include "worker/process/start_up.h"
#include "worker/ranks/rank.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {

constexpr size_t kSlotBytes = 1 << 18;

struct Kind {
  std::string name, device, dtype, kv;
};
inline const Kind kCpuFloat32{"CPU float32", "cpu", "float32", "auto"},
    kCpuBf16{"CPU bfloat16", "cpu", "bfloat16", "auto"}, kGpuBf16{"GPU bfloat16", "cuda", "auto", "auto"},
    kGpuFp8{"GPU fp8", "cuda", "auto", "fp8"};
/// Not every CPU computes in bfloat16.
inline const Kind& CpuOfFewestBits() {
  static const bool bf16 = kernels::MakeCpuOps({.dtype = DType::kBF16}).ok();
  return bf16 ? kCpuBf16 : kCpuFloat32;
}
/// Those that there are here.
inline std::vector<Kind> Kinds() {
  std::vector<Kind> out = {kCpuFloat32, kGpuBf16, kGpuFp8};
  if (CpuOfFewestBits().name != kCpuFloat32.name) out.push_back(CpuOfFewestBits());
  return out;
}

/// A worker's model and KV of one sequence, in blocks of its own size.
class Side {
 public:
  Side(const Kind& kind, const std::string& role, int block, const std::string& model = "tests/data/tiny-llama",
       const std::string& load_format = "dummy", bool cuda_ipc = true) {
    WorkerConfig c;
    c.role = role;
    c.model = model;
    c.load_format = load_format;
    c.threads = 1;
    c.max_num_seqs = 2;
    c.max_model_len = 128;
    c.max_num_batched_tokens = 64;
    c.device = kind.device;
    c.dtype = kind.dtype;
    c.kv_cache_dtype = kind.kv;
    c.block_size = block;
    c.enforce_eager = kind.device == "cuda";
    c.landing_slot_bytes = kSlotBytes;
    c.kv_cuda_ipc = cuda_ipc;
    c.kv_cache_memory = 4 << 20;
    if (kind.device == "cuda") c.device_plugin = EMULATED_PLUGIN;
    StartUpProgress progress;
    absl::StatusOr<LoadedModel> loaded = StartUp(c, progress);
    if (!loaded.ok()) {
      ADD_FAILURE() << kind.name << " as " << role << ": " << loaded.status();
      std::abort();
    }
    loaded_ = *std::move(loaded);
    tables_.assign(loaded_.model->kv_layout().groups.size(), {5, 1, 3, 0, 2, 4, 7, 6});
    tables_.back() = {7, 0, 6, 1, 5, 2, 4, 3};
    for (const int32_t blocks : loaded_.memory->num_blocks()) EXPECT_GE(blocks, 8) << "fewer than a table names";
  }

  KvSide side() const { return SideOf(loaded_.model->kv_layout()); }
  KvPoolView pool() const { return PoolViewOf(loaded_.AllMemory(), loaded_.AllMovers()); }
  const KvBlockTables& tables() const { return tables_; }
  kernels::Ops& ops() { return *loaded_.ops; }
  LoadedModel& loaded() { return loaded_; }

  /// Logits of the last of `tokens`, which follow `context` tokens.
  std::vector<float> Compute(const std::vector<int32_t>& tokens, int32_t context,
                             std::function<void(int)> on_layer = nullptr) {
    const auto n = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> row_start{0, n}, before{context}, rows{n - 1};
    engine::ForwardBatch batch{.tokens = tokens, .logit_rows = rows, .on_layer_kv = std::move(on_layer)};
    for (const std::vector<int32_t>& table : tables_) {
      batch.groups.push_back({.row_start = row_start,
                              .context = before,
                              .block_tables = table,
                              .table_stride = static_cast<int64_t>(table.size())});
    }
    const std::atomic<bool> cancel{false};
    const auto logits = loaded_.model->Forward(batch, loaded_.memory->groups(), cancel).value();
    std::vector<float> out(static_cast<size_t>(logits.cols()));
    loaded_.ops->CopyToHost(out.data(), logits.data, out.size() * sizeof(float));
    return out;
  }

 private:
  LoadedModel loaded_;
  KvBlockTables tables_;
};

inline std::vector<int32_t> Prompt(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 37 + 11) % 540 + 3);
  return tokens;
}

inline double Distance(const std::vector<float>& want, const std::vector<float>& got) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += double{want[i]} * want[i];
    errors += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
  }
  return std::sqrt(errors / squares);
}

/// The transfer of a prompt's KV in slots of one segment or more.
class Handoff {
 public:
  Handoff(Side& from, Side& to, int tokens)
      : from_(from), to_(to), plan_(TransferPlan::Make(from.side(), to.side(), {0, tokens}, 32).value()) {}

  const LanePlan& lane() const { return plan_.lanes()[0]; }
  std::vector<uint32_t> Segments() const {
    std::vector<uint32_t> all(static_cast<size_t>(lane().segments));
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }
  /// Of layer 0 … n - 1 of the model, which are in the plan's order.
  std::vector<uint32_t> SegmentsOf(int layer) const {
    std::vector<uint32_t> found;
    for (const uint32_t s : Segments())
      if (plan_.SegmentAt(lane(), static_cast<int>(s)).layer == layer) found.push_back(s);
    return found;
  }
  absl::Status Gather(const std::vector<uint32_t>& segments) {
    const auto bytes = GatherSlot(plan_, lane(), kKey, 1, segments, from_.pool(), from_.tables(), slot_);
    return bytes.status();
  }
  absl::Status Scatter(const std::vector<uint32_t>& segments) {
    const absl::StatusOr<SlotContent> content = ReadSlot(slot_, kKey, 1);
    if (!content.ok()) return content.status();
    return VerifyAndScatterSlot(plan_, lane(), *content, segments, to_.pool(), to_.tables());
  }
  absl::Status Run() {
    for (const uint32_t segment : Segments()) {
      if (absl::Status s = Gather({segment}); !s.ok()) return s;
      if (absl::Status s = Scatter({segment}); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  std::vector<std::byte>& slot() { return slot_; }

  // ---- by CUDA IPC: the slot has the table alone
  /// Into buffer `room.buffer` of the source's outbox.
  absl::Status Lend(const std::vector<uint32_t>& segments, OutboxRoom room = {}) {
    std::ranges::fill(slot_, std::byte{0xAB});
    const auto bytes = GatherSlot(plan_, lane(), kKey, 1, segments, from_.pool(), from_.tables(), slot_, &room);
    if (!bytes.ok()) return bytes.status();
    EXPECT_EQ(*bytes, SlotOverheadBytes(segments.size()));
    return absl::OkStatus();
  }
  absl::StatusOr<PeerOutbox> Open() {
    const KvOutbox outbox = from_.loaded().mover->outbox();
    return OpenOutbox(to_.pool(), outbox.card, outbox.buffer_bytes);
  }
  absl::Status Fetch(const std::vector<uint32_t>& segments, const PeerOutbox& from) {
    const absl::StatusOr<SlotContent> content = ReadSlot(slot_, kKey, 1);
    if (!content.ok()) return content.status();
    return VerifyAndScatterSlot(plan_, lane(), *content, segments, to_.pool(), to_.tables(), from);
  }
  /// A slot of two segments and buffer after the other.
  absl::Status RunByIpc() {
    const auto opened = Open();
    if (!opened.ok()) return opened.status();
    const std::vector<uint32_t> all = Segments();
    for (uint32_t i = 0, n = 0; i < all.size(); i += 2, ++n) {
      std::vector<uint32_t> two(all.begin() + i, all.begin() + std::min<size_t>(i + 2, all.size()));
      const uint32_t buffer = n % from_.loaded().mover->outbox().buffers;
      if (absl::Status s = Lend(two, {buffer, buffer}); !s.ok()) return s;
      std::ranges::reverse(two);  // as they are asked for, not as they lie
      if (absl::Status s = Fetch(two, *opened); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr LaneKey kKey{7, 1, 0};
  Side &from_, &to_;
  const TransferPlan plan_;
  std::vector<std::byte> slot_ = std::vector<std::byte>(kSlotBytes);
};

inline void InTwoChunks(Side& side, const std::vector<int32_t>& prompt) {
  side.Compute({prompt.begin(), prompt.begin() + 64}, 0);
  side.Compute({prompt.begin() + 64, prompt.end()}, 64);
}

// The bits of one worker alone where both are of one kind.
inline void ExpectAsAlone(const std::vector<float>& got, const std::vector<float>& want, const Kind& source,
                          const Kind& target) {
  if (source.name == target.name)
    EXPECT_EQ(got, want);
  else
    EXPECT_LT(Distance(want, got), source.kv == "fp8" || target.kv == "fp8" ? 0.15 : 0.04);
}

}  // namespace baton::worker
