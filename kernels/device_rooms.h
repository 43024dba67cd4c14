// The working memory of a device, known before anything is allocated: a backend allocates these bytes, the start of a
// worker holds them against what is free, and a memory plan prints them. Sizes of what kernels read are the device's
// own (static_assert beside each).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/logprob_limit.h"
#include "kernels/ops.h"
#include "kernels/packed_size.h"

namespace baton::kernels {

/// OpsTraits::work_bytes of a GPU: for partial results of attention, for sampling, each, and a quarter of it for the
/// outputs of a weight in codes. One sequence's KV head, one row's vocabulary and 128 outputs always fit.
inline constexpr int64_t kDeviceWorkBytes = int64_t{256} << 20;

/// OpsTraits::library_bytes of a GPU whose library may multiply: as much as cuBLASLt's fastest algorithms of sm_90 ask
/// for.
inline constexpr int64_t kLibraryBytes = int64_t{32} << 20;

/// Lists of tokens that go to the device with a step's inputs.
inline constexpr int64_t kMostListBytes = int64_t{4} << 20;

/// Elements and bytes of what the kernels of steps read and write.
namespace device_sizes {
inline constexpr int64_t kInt = 4, kAlignment = 16;
inline constexpr int64_t kGroupRows = 16, kTileTokens = 256, kPrefillRows = 64;  ///< of attention
inline constexpr int64_t kPrefillTile = 8, kDecodeGroup = 20, kDecodeItem = 16;
inline constexpr int64_t kSampleRow = 96, kSampleOutput = 16, kListEntry = 8;
inline constexpr int64_t kSampleAlignment = 8 * kAlignment;
inline constexpr int64_t kScales = 256 * 4;            ///< a table of KV scales: one for each head
inline constexpr int64_t kKvLists = 4096 * (72 + 12);  ///< of the KV that a launch moves
inline constexpr int64_t kWholeSumFloats = int64_t{1} << 16, kToken = 16, kPeerBlockFloats = 1024, kMostPeers = 8;
inline constexpr int64_t kDevicePage = 2 << 20;  ///< a handle of CUDA IPC shares whole ones
inline constexpr int64_t kOutboxBuffers = 16, kOutboxMark = 4096;
}  // namespace device_sizes

/// Rows of one sequence that are decoded at most, not prefilled, by a kind of attention layer.
inline int64_t DecodedRows(const StepLimits::Heads& heads) {
  return std::max<int64_t>(1, device_sizes::kGroupRows / (heads.q_heads / heads.kv_heads));
}
/// The most groups of packed rows of a step, and the most partial results of a group.
inline int64_t MostGroups(const StepLimits::Heads& heads, int64_t sequences) {
  const int64_t packed = DecodedRows(heads) * (heads.q_heads / heads.kv_heads);
  return sequences * heads.kv_heads * ((packed + device_sizes::kGroupRows - 1) / device_sizes::kGroupRows);
}
inline int64_t MostPartials(const StepLimits::Heads& heads, int64_t positions) {
  const auto tiles = [](int64_t tokens) {
    return (tokens + device_sizes::kTileTokens - 1) / device_sizes::kTileTokens;
  };
  const int64_t all = tiles(positions);
  return heads.window > 0 ? std::min(all, tiles(heads.window + DecodedRows(heads)) + 1) : all;
}

/// Groups and partial results (of kGroupRows rows of `dim` floats) that one launch of attention has room for.
inline int64_t PartialsAtOnce(const StepLimits& limits, const StepLimits::Heads& heads, int64_t work_bytes) {
  const int64_t of_group = MostPartials(heads, limits.positions), row_bytes = int64_t{heads.dim} * 4,
                fit = std::max<int64_t>(1, work_bytes / (device_sizes::kGroupRows * row_bytes));
  return std::min(of_group * MostGroups(heads, limits.sequences), std::max(fit, of_group));
}

/// A KV group's arrays of a step, and one kind's work lists.
inline int64_t ArrayBytes(const StepLimits& limits, int tokens_per_block) {
  const int64_t stride = limits.positions / tokens_per_block + 1;
  return device_sizes::kInt * (limits.sequences * (2 + stride) + 1 + 2 * limits.rows) + 5 * device_sizes::kAlignment;
}
inline int64_t WorkBytes(const StepLimits::Heads& heads, const StepLimits& limits) {
  const int64_t tiles = limits.sequences + limits.rows / device_sizes::kPrefillRows,
                groups = MostGroups(heads, limits.sequences);
  return tiles * device_sizes::kPrefillTile +
         groups * (device_sizes::kDecodeGroup + MostPartials(heads, limits.positions) * device_sizes::kDecodeItem +
                   2 * device_sizes::kInt) +
         4 * device_sizes::kAlignment;
}
/// Of the lists of tokens that say what a step draws: those of penalties, of each sequence's whole context, up to what
/// a copy takes in 0.1 ms. Longer ones go to the device apart.
inline int64_t ListBytes(const StepLimits& limits) {
  const int64_t tokens = 2 * std::min(limits.vocab, limits.positions);
  return std::min(limits.logit_rows * tokens * device_sizes::kListEntry, kMostListBytes) + 2 * device_sizes::kAlignment;
}
/// Of the inputs of the largest step, which go to the device in one copy.
inline int64_t InputBytes(const StepLimits& limits) {
  int64_t bytes = (limits.rows + limits.logit_rows) * device_sizes::kInt + 2 * device_sizes::kAlignment;
  bytes += limits.logit_rows * device_sizes::kSampleRow + device_sizes::kAlignment + ListBytes(limits);
  for (const int tokens : limits.tokens_per_block) bytes += ArrayBytes(limits, tokens);
  for (const StepLimits::Heads& heads : limits.attention) bytes += WorkBytes(heads, limits);
  return bytes;
}
/// Of token ids and row numbers that go there apart.
inline int64_t IdBytes(const StepLimits& limits) {
  return std::max<int64_t>(4096, std::max(limits.rows, limits.logit_rows) * device_sizes::kInt);
}

/// Results of a launch of the sampler.
inline int64_t DrawBytes(int64_t rows) {
  const auto aligned = [](int64_t bytes) {
    return (bytes + device_sizes::kAlignment - 1) / device_sizes::kAlignment * device_sizes::kAlignment;
  };
  return aligned(rows * device_sizes::kSampleOutput) + 2 * aligned(rows * kMostCudaLogprobs * device_sizes::kInt);
}
/// One row of the sampler but for its copy of the logits: `entries` of lists, and a mask or none.
inline int64_t SampleRowBytes(int64_t entries, bool masked, int64_t vocab) {
  return device_sizes::kSampleRow + device_sizes::kSampleOutput + int64_t{kMostCudaLogprobs} * 8 +
         entries * device_sizes::kListEntry + (masked ? (vocab + 31) / 32 * device_sizes::kInt : 0);
}
/// No row needs more than its whole vocabulary in every list; as many run at once as fit.
inline int64_t SampleBytes(const StepLimits& limits, int64_t work_bytes) {
  const int64_t one = SampleRowBytes(3 * limits.vocab, true, limits.vocab) + limits.vocab * 4;
  return std::min(limits.logit_rows * one, std::max(one, work_bytes)) + device_sizes::kSampleAlignment;
}

inline bool SameAngles(const RopeParams& a, const RopeParams& b) {
  return a.rotary_dim == b.rotary_dim && a.attention_factor == b.attention_factor && a.inv_freq == b.inv_freq;
}
inline int64_t RotaryBytes(const RopeParams& rope, int64_t positions) { return positions * rope.rotary_dim * 4; }

/// Of a group of ranks, for sums of up to `floats`: what is gathered.
inline int64_t GatheredBytes(int64_t ranks, int64_t floats) {
  const int64_t most = std::max(floats, device_sizes::kWholeSumFloats);
  return 2 * device_sizes::kToken + std::max(device_sizes::kWholeSumFloats * ranks, most) * 4;
}
/// Of one whose ranks write sums of up to `bytes` into each other's memory: landings and flags, and epochs.
inline int64_t OneShotBytes(int64_t ranks, int64_t bytes) {
  const int64_t blocks = bytes / 4 / device_sizes::kPeerBlockFloats;
  if (blocks == 0 || ranks > device_sizes::kMostPeers) return 0;
  const int64_t landing = 2 * ranks * blocks * device_sizes::kPeerBlockFloats * 4 + blocks * ranks * 4;
  return (landing + device_sizes::kDevicePage - 1) / device_sizes::kDevicePage * device_sizes::kDevicePage + blocks * 4;
}

/// Of KV that moves, `buffer_bytes` at a time where processes of the machine may read it; 0: they may not. Lists,
/// outbox and inbox.
inline int64_t OutboxBytes(int64_t buffer_bytes) {
  const int64_t bytes = device_sizes::kOutboxBuffers * buffer_bytes + device_sizes::kOutboxMark;
  return (bytes + device_sizes::kDevicePage - 1) / device_sizes::kDevicePage * device_sizes::kDevicePage;
}
inline int64_t HandoffBytes(int64_t buffer_bytes) {
  return device_sizes::kKvLists + (buffer_bytes > 0 ? OutboxBytes(buffer_bytes) + buffer_bytes : 0);
}

/// Pinned memory of the host for the inputs of steps and the tokens drawn, both twice.
inline int64_t PinnedBytes(const StepLimits& limits) { return 2 * (InputBytes(limits) + DrawBytes(limits.logit_rows)); }

/// All that Ops::Prepare leaves allocated, with what an Ops has from the start; not that of groups and of the handoff.
inline DeviceRooms RoomsOf(const StepLimits& limits, const CodeRooms& codes, int64_t work_bytes) {
  DeviceRooms rooms;
  const auto seen_before = [](const auto& all, size_t i, const auto& same) {
    return std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                       [&](const auto& other) { return same(other, all[i]); });
  };
  int64_t work = 0, sums = 0;
  for (size_t i = 0; i < limits.attention.size(); ++i) {
    const StepLimits::Heads& heads = limits.attention[i];
    const int64_t rows = PartialsAtOnce(limits, heads, work_bytes) * device_sizes::kGroupRows;
    rooms.partials = std::max(rooms.partials, rows * heads.dim * 4);
    sums = std::max(sums, rows * 8);
    const auto same = [](const StepLimits::Heads& a, const StepLimits::Heads& b) {
      return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.window == b.window;
    };
    if (!seen_before(limits.attention, i, same)) work += WorkBytes(heads, limits);
  }
  rooms.partials += sums;
  const int fewest = *std::min_element(limits.tokens_per_block.begin(), limits.tokens_per_block.end());
  rooms.inputs = IdBytes(limits) + InputBytes(limits) +
                 static_cast<int64_t>(limits.tokens_per_block.size()) * (ArrayBytes(limits, fewest) + work);
  for (size_t i = 0; i < limits.ropes.size(); ++i) {
    if (!seen_before(limits.ropes, i, SameAngles)) rooms.rotary += RotaryBytes(limits.ropes[i], limits.positions);
  }
  rooms.sampling = SampleBytes(limits, work_bytes) + limits.logit_rows * device_sizes::kInt;
  rooms.codes = codes.Bytes(limits.rows);
  std::vector<float> scales = limits.kv_scales;
  scales.push_back(1.0f);
  std::ranges::sort(scales);
  rooms.scales = std::ranges::distance(scales.begin(), std::ranges::unique(scales).begin()) * device_sizes::kScales;
  return rooms;
}

}  // namespace baton::kernels
