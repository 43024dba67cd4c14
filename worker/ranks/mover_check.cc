#include "worker/ranks/mover_check.h"

#include <cstring>
#include <random>
#include <vector>

#include "common/kv_digest.h"
#include "common/kv_layout.h"
#include "common/status.h"

namespace baton::worker {
namespace {

/// Blocks of one unit and one head, in the device's memory, and what is in them.
struct KnownBlocks {
  /// Other bytes for each `seed`, so that what was there before is not what is looked for.
  KnownBlocks(size_t room, DType kv, int dim_in, uint64_t seed) : dim(dim_in), type(kv) {
    vector_bytes = static_cast<size_t>(dim) * DTypeBytes(kv);
    block_bytes = kUnitTokens * vector_bytes;
    digests.resize(room / block_bytes);
    bytes.resize(digests.size() * block_bytes);
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < bytes.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, 8);
    }
    for (size_t b = 0; b < digests.size(); ++b) {
      for (int t = 0; t < kUnitTokens; ++t) {
        const KvCoordinate at{0, 0, 0, static_cast<uint32_t>(b) * kUnitTokens + static_cast<uint32_t>(t)};
        digests[b] += KvDigestVector(at, bytes.data() + b * block_bytes + static_cast<size_t>(t) * vector_bytes,
                                     static_cast<uint32_t>(vector_bytes));
      }
    }
  }

  /// One segment per block.
  std::vector<KvMove> Moves(std::byte* blocks, uint64_t* beside) const {
    std::vector<KvMove> moves(digests.size());
    for (size_t b = 0; b < moves.size(); ++b) {
      moves[b].cache = blocks + b * block_bytes;
      moves[b].token_stride = static_cast<int64_t>(vector_bytes);
      moves[b].staged = static_cast<int64_t>(b * block_bytes);
      moves[b].digests = beside + b;
      moves[b].digest_stride = 1;
      moves[b].first_token = static_cast<uint32_t>(b) * kUnitTokens;
      moves[b].tokens = kUnitTokens;
      moves[b].heads = 1;
      moves[b].dim = dim;
      moves[b].segment = static_cast<int32_t>(b);
      moves[b].cached = moves[b].packed = type;
    }
    return moves;
  }

  absl::Status Compare(const char* what, const void* found, std::span<const KvMoved> moved,
                       std::span<const int32_t> unkept) const {
    for (size_t b = 0; b < digests.size(); ++b) {
      if (std::memcmp(static_cast<const std::byte*>(found) + b * block_bytes, bytes.data() + b * block_bytes,
                      block_bytes) != 0)
        return absl::DataLossError(StrCat("the GPU ", what, " other bytes than were there, in block ", b));
      if (moved[b].digest != digests[b] || moved[b].unkept != unkept[b]) {
        return absl::DataLossError(StrCat("the GPU ", what, " block ", b, " with digest ", absl::Hex(moved[b].digest),
                                          " instead of ", absl::Hex(digests[b]), ", ", moved[b].unkept,
                                          " units that differ instead of ", unkept[b]));
      }
    }
    return absl::OkStatus();
  }

  const int dim;
  const DType type;
  size_t vector_bytes = 0, block_bytes = 0;
  std::vector<std::byte> bytes;
  std::vector<uint64_t> digests;
};

}  // namespace

absl::StatusOr<MoverRates> CheckMover(kernels::Ops& ops, KvMover& mover, DType kv, int dim, const Clock& clock) {
  const KnownBlocks known(mover.staging().size(), kv, dim,
                          static_cast<uint64_t>(clock.Now().time_since_epoch().count()));
  const size_t blocks = known.digests.size(), bytes = known.bytes.size();
  BATON_ASSIGN_OR_RETURN(const auto memory, ops.Allocate(bytes));
  BATON_ASSIGN_OR_RETURN(const auto beside, ops.Allocate(blocks * sizeof(uint64_t)));
  const std::vector<KvMove> moves =
      known.Moves(static_cast<std::byte*>(memory->data()), static_cast<uint64_t*>(beside->data()));
  std::vector<int32_t> unkept(blocks);
  std::vector<uint64_t> digests = known.digests;
  unkept.front() = kMakesKvDigests ? 1 : 0;
  digests.front() += unkept.front();  // a source that is not what was computed is said to be none
  ops.CopyToDevice(memory->data(), known.bytes.data(), bytes);
  ops.CopyToDevice(beside->data(), digests.data(), blocks * sizeof(uint64_t));
  ops.Sync();
  MoverRates rates;
  const auto rate = [&](TimePoint since) { return static_cast<double>(bytes) / 1e9 / Seconds(clock.Now() - since); };
  std::vector<KvMoved> gathered(blocks);
  const TimePoint began = clock.Now();
  BATON_RETURN_IF_ERROR(mover.Gather(moves, gathered, KvPacked::kStaging));
  rates.gather_gigabytes_per_second = rate(began);
  BATON_RETURN_IF_ERROR(known.Compare("gathers", mover.staging().data(), gathered, unkept));

  std::vector<std::byte> found(bytes);
  // Into blocks that hold nothing.
  const auto scatter = [&](const char* what, const OpenedOutbox* from, double& took) -> absl::Status {
    std::vector<KvMoved> scattered(blocks);
    const std::vector<std::byte> nothing(bytes);
    ops.CopyToDevice(memory->data(), nothing.data(), bytes);
    ops.Sync();
    const TimePoint begin = clock.Now();
    if (from != nullptr) BATON_RETURN_IF_ERROR(mover.Fetch(*from, 0, 0, static_cast<int64_t>(bytes)));
    BATON_RETURN_IF_ERROR(mover.Scatter(moves, scattered, from != nullptr ? KvPacked::kInbox : KvPacked::kStaging));
    took = rate(begin);
    ops.CopyToHost(found.data(), memory->data(), bytes);
    BATON_RETURN_IF_ERROR(known.Compare(what, found.data(), scattered, std::vector<int32_t>(blocks)));
    ops.CopyToHost(digests.data(), beside->data(), blocks * sizeof(uint64_t));
    if (digests == known.digests) return absl::OkStatus();
    return absl::DataLossError(StrCat("the GPU ", what, " KV without its digests"));
  };
  BATON_RETURN_IF_ERROR(scatter("scatters", nullptr, rates.scatter_gigabytes_per_second));

  const KvOutbox outbox = mover.outbox();
  if (outbox.card.empty()) return rates;
  const auto opened = mover.Open(outbox.card);
  if (!opened.ok()) return absl::DataLossError(StrCat("the GPU's own outbox: ", opened.status().message()));
  std::vector<KvMoved> lent(blocks);
  BATON_RETURN_IF_ERROR(mover.Gather(moves, lent, KvPacked::kOutbox));
  BATON_RETURN_IF_ERROR(scatter("fetches", opened->get(), rates.lent_gigabytes_per_second));
  return rates;
}

}  // namespace baton::worker
