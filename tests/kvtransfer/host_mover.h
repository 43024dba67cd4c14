// A KvMover over memory of the host, as unkind as a device's: nothing is copied before it must be, and an outbox whose
// mover is gone holds garbage. KV of one type. Thread: any one.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/kv_digest.h"
#include "common/kv_mover.h"
#include "common/status.h"

namespace baton {

class HostMover final : public KvMover {
 public:
  HostMover(size_t slot_bytes, uint32_t buffers)
      : staging_(slot_bytes), inbox_(slot_bytes), outbox_(std::make_shared<Bytes>(buffers * slot_bytes + kMark)) {
    card_ = std::to_string(++Cards().last);
    for (size_t i = 0; i < kMark; ++i) mark_ += static_cast<char>(std::hash<std::string>()(card_) >> i % 56);
    std::memcpy(outbox_->data() + buffers * slot_bytes, mark_.data(), kMark);
    Cards().outboxes[card_] = outbox_;
    buffers_ = buffers;
    Cards().inboxes[inbox_.data()] = this;
  }
  ~HostMover() override {
    Cards().inboxes.erase(inbox_.data());
    Cards().outboxes.erase(card_);
    std::ranges::fill(*outbox_, std::byte{0xEE});
  }

  std::span<std::byte> staging() override { return staging_; }
  bool Converts(DType packed, DType cached) const override { return packed == cached; }
  KvOutbox outbox() const override {
    return {.card = card_, .refused = {}, .buffers = buffers_, .buffer_bytes = staging_.size()};
  }
  /// What lies in a buffer.
  std::span<std::byte> buffer(uint32_t number) {
    return std::span(*outbox_).subspan(number * staging_.size(), staging_.size());
  }

  absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked to) override {
    gathered[static_cast<size_t>(to)] += 1;
    for (const KvMove& m : moves) {
      KvMoved& moved = segments[static_cast<size_t>(m.segment)];
      std::map<uint64_t*, uint64_t> kept;
      ForEachVector(m, Packed(to),
                    [&](std::byte* cached, std::byte* packed, size_t bytes, const KvCoordinate& at, uint64_t* beside) {
                      std::memcpy(packed, cached, bytes);
                      const uint64_t digest = KvDigestVector(at, packed, static_cast<uint32_t>(bytes));
                      moved.digest += digest;
                      kept[beside] += digest;
                    });
      moved.unkept +=
          static_cast<int32_t>(std::ranges::count_if(kept, [](auto& one) { return *one.first != one.second; }));
    }
    return absl::OkStatus();
  }

  absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked from) override {
    for (const auto& copy : std::exchange(fetches_, {})) copy();
    scattered[static_cast<size_t>(from)] += 1;
    for (const KvMove& m : moves) {
      KvMoved& moved = segments[static_cast<size_t>(m.segment)];
      ForEachVector(
          m, Packed(from),
          [&](std::byte* cached, const std::byte* packed, size_t bytes, const KvCoordinate& at, uint64_t* beside) {
            std::memcpy(cached, packed, bytes);
            const uint64_t digest = KvDigestVector(at, cached, static_cast<uint32_t>(bytes));
            moved.digest += digest;
            *beside = at.token % kUnitTokens == 0 ? digest : *beside + digest;
          });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<OpenedOutbox>> Open(std::string_view card) override {
    const auto found = Cards().outboxes.find(std::string(card));
    if (found == Cards().outboxes.end()) return absl::FailedPreconditionError("nobody has this card");
    ++opened;
    auto outbox = std::make_shared<Opened>();
    outbox->memory = found->second.lock();
    return outbox;
  }
  absl::Status Fetch(const OpenedOutbox& from, int64_t at, int64_t to, int64_t bytes) override {
    const std::shared_ptr<Bytes> memory = static_cast<const Opened&>(from).memory;
    if (at < 0 || to < 0 || bytes < 0 || at + bytes > static_cast<int64_t>(memory->size()) ||
        to + bytes > static_cast<int64_t>(inbox_.size()))
      return absl::InvalidArgumentError("beyond an end");
    fetches_.push_back([this, memory, at, to, bytes] {
      std::memcpy(inbox_.data() + to, memory->data() + at, static_cast<size_t>(bytes));
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(std::span<std::byte> memory) override {
    if (!pins) return absl::FailedPreconditionError("it pins nothing");
    return std::make_unique<Pinned>(*this, memory);
  }
  void FetchPinned(std::span<const std::byte> from, int64_t to) override {
    const auto holds = [&](std::span<std::byte> memory) {
      return from.data() >= memory.data() && from.data() + from.size() <= memory.data() + memory.size();
    };
    BATON_CHECK(std::ranges::any_of(pinned, holds), "memory that is not pinned");
    fetches_.push_back([this, from, to] { std::memcpy(inbox_.data() + to, from.data(), from.size()); });
  }

  KvDeviceRooms rooms() override { return {*outbox_, inbox_, mark_}; }
  absl::Status SeeInbox(std::span<std::byte> head) override {
    if (!sees_not.empty()) return absl::FailedPreconditionError(sees_not);
    for (const auto& [to, bytes] : std::exchange(unseen_, {})) std::ranges::copy(bytes, to.begin());
    std::memcpy(head.data(), inbox_.data(), head.size());
    return absl::OkStatus();
  }
  void ClearInbox(size_t bytes) override { std::fill_n(inbox_.begin(), bytes, std::byte{}); }
  /// As a network's device: not seen before it must be.
  void WriteAsNetwork(std::span<std::byte> to, std::vector<std::byte> bytes) {
    unseen_.emplace_back(to, std::move(bytes));
  }
  /// So, into the inbox of whoever has it.
  static void WriteToInbox(std::span<std::byte> to, std::vector<std::byte> bytes) {
    const auto found = std::prev(Cards().inboxes.upper_bound(to.data()));
    found->second->WriteAsNetwork(to, std::move(bytes));
  }

  std::string sees_not;                         ///< why it sees no such writes; empty: it does
  int64_t gathered[3] = {}, scattered[3] = {};  ///< calls, by KvPacked
  int opened = 0;                               ///< outboxes of others
  bool pins = true;
  std::vector<std::span<std::byte>> pinned;  ///< now

 private:
  static constexpr size_t kMark = 64;
  using Bytes = std::vector<std::byte>;
  struct Opened final : OpenedOutbox {
    std::shared_ptr<Bytes> memory;
  };
  struct Pinned final : PinnedMemory {
    Pinned(HostMover& mover, std::span<std::byte> memory) : mover(mover), memory(memory) {
      mover.pinned.push_back(memory);
    }
    ~Pinned() override {
      std::erase_if(mover.pinned, [this](auto& one) { return one.data() == memory.data(); });
    }
    HostMover& mover;
    const std::span<std::byte> memory;
  };
  struct Known {
    int64_t last = 0;
    std::map<std::string, std::weak_ptr<Bytes>> outboxes;
    std::map<std::byte*, HostMover*> inboxes;
  };
  static Known& Cards() {
    static Known known;
    return known;
  }
  std::byte* Packed(KvPacked where) {
    return where == KvPacked::kStaging ? staging_.data() : where == KvPacked::kOutbox ? outbox_->data() : inbox_.data();
  }
  /// visit(in the cache, packed, bytes, coordinate, digest beside the block)
  template <class Visit>
  static void ForEachVector(const KvMove& m, std::byte* packed, Visit visit) {
    const size_t bytes = static_cast<size_t>(m.dim) * DTypeBytes(m.packed);
    const uint32_t skew = m.first_token % kUnitTokens;
    packed += m.staged;
    for (uint32_t t = 0; t < static_cast<uint32_t>(m.tokens); ++t) {
      auto* row = static_cast<std::byte*>(m.cache) + t * m.token_stride;
      for (uint32_t h = 0; h < static_cast<uint32_t>(m.heads); ++h, packed += bytes, row += bytes) {
        visit(row, packed, bytes, KvCoordinate{m.layer, m.plane, m.first_head + h, m.first_token + t},
              m.digests + (skew + t) / kUnitTokens * m.digest_stride + h);
      }
    }
  }

  Bytes staging_, inbox_;
  const std::shared_ptr<Bytes> outbox_;
  std::string card_;
  uint32_t buffers_ = 0;
  std::string mark_;
  std::vector<std::function<void()>> fetches_;
  std::vector<std::pair<std::span<std::byte>, std::vector<std::byte>>> unseen_;
};

}  // namespace baton
