#include "kvtransfer/self_test.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"

namespace baton {
namespace {

constexpr uint64_t kMostBytes = 1 << 20;                      ///< of one write
constexpr int kWrites = 4;                                    ///< of a round
constexpr int kRounds = 6;                                    ///< the first warms up and does not count
constexpr int kMostFailures = 2;                              ///< rounds that may fail: somebody's late write, once
constexpr auto kLongEnough = std::chrono::milliseconds(150);  ///< slow networks: one round that counts is enough
constexpr auto kAskAgain = std::chrono::milliseconds(500);
constexpr auto kSilence = std::chrono::seconds(5);
constexpr auto kHoldAtMost = std::chrono::seconds(2);  ///< a silent holder, while others wait
constexpr auto kHoldInAll = std::chrono::seconds(4);   ///< any holder, while others wait: for less than kSilence

uint64_t Word(uint64_t seed, uint64_t i) {
  uint64_t x = (seed + i) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9ull;
}

}  // namespace

void FillTestPattern(uint64_t seed, std::span<std::byte> bytes) {
  for (size_t i = 0; i * 8 < bytes.size(); ++i) {
    const uint64_t word = Word(seed, i);
    std::memcpy(bytes.data() + i * 8, &word, std::min<size_t>(8, bytes.size() - i * 8));
  }
}

bool IsTestPattern(uint64_t seed, std::span<const std::byte> bytes) {
  for (size_t i = 0; i * 8 < bytes.size(); ++i) {
    const uint64_t word = Word(seed, i);
    if (std::memcmp(bytes.data() + i * 8, &word, std::min<size_t>(8, bytes.size() - i * 8)) != 0) return false;
  }
  return true;
}

// ---- the receiver

void SelfTestSlot::OnMessage(PeerNumber peer, const SelfTestMessage& message, TimePoint now) {
  using Step = SelfTestMessage::Step;
  const bool too_slow = message.step == Step::kFull && peer != holder_;  // it lost its grant, and is tested anew
  if (message.step == Step::kAsk || too_slow) {
    if (peer != holder_) Wait(peer);
    const bool too_long = now - heard_ > kHoldAtMost || now - granted_ > kHoldInAll;
    if (holder_ == 0 || (peer != holder_ && too_long)) return Grant(now);
    if (peer == holder_)
      send_(peer, {.step = Step::kGrant, .slot = {slot_, turn_}, .bytes = memory_.size(), .text = incarnation_});
    return;
  }
  if (peer != holder_) return;
  heard_ = now;
  if (message.step == Step::kFull && message.slot == SlotTurn{slot_, turn_}) {
    const bool ok = message.bytes <= memory_.size() && IsTestPattern(message.seed, memory_.first(message.bytes));
    send_(peer, {.step = Step::kSeen, .slot = {slot_, turn_++}, .ok = ok});
  } else if (message.step == Step::kOver) {
    Grant(now);
  }
}

void SelfTestSlot::OnLost(PeerNumber peer, TimePoint now) {
  std::erase_if(waiting_, [peer](const Waiting& one) { return one.peer == peer; });
  if (peer == holder_) Grant(now);
}

void SelfTestSlot::Wait(PeerNumber peer) {
  const auto known = std::ranges::find(waiting_, peer, &Waiting::peer);
  if (known == waiting_.end())
    waiting_.push_back({peer});
  else
    known->asked_again = true;
}

/// The slot goes to the next peer that waits: one that has asked again before those that asked once and may have gone
/// silent, of whom each would hold it for a while. Late messages of the last holder name an earlier turn.
void SelfTestSlot::Grant(TimePoint now) {
  ++turn_;
  granted_ = heard_ = now;
  holder_ = 0;
  if (waiting_.empty()) return;
  auto next = std::ranges::find(waiting_, true, &Waiting::asked_again);
  if (next == waiting_.end()) next = waiting_.begin();
  holder_ = next->peer;
  waiting_.erase(next);
  send_(holder_,
        {.step = SelfTestMessage::Step::kGrant, .slot = {slot_, turn_}, .bytes = memory_.size(), .text = incarnation_});
}

// ---- the sender

SelfTest::SelfTest(Transport& transport, PeerNumber peer, const Clock& clock, SendSelfTest send, Done done)
    : transport_(transport), peer_(peer), clock_(clock), send_(std::move(send)), done_(std::move(done)) {}

void SelfTest::Start() {
  started_ = asked_ = clock_.Now();
  own_ = OwnTime(started_);
  heard_ = own_.Now();
  send_(peer_, {.step = SelfTestMessage::Step::kAsk});
}

void SelfTest::Tick() {
  const TimePoint now = clock_.Now();
  own_.Tick(now);
  if (const Duration silent = own_.Now() - heard_; silent > kSilence) {
    return Finish(absl::DeadlineExceededError(StrCat("no answer in the self-test for ", Seconds(silent), " s")));
  }
  if (granted_ || now - asked_ < kAskAgain) return;
  asked_ = now;
  send_(peer_, {.step = SelfTestMessage::Step::kAsk});
}

void SelfTest::OnMessage(const SelfTestMessage& message) {
  using Step = SelfTestMessage::Step;
  if (done_ == nullptr) return;
  const bool anew = granted_ && message.slot.turn > slot_.turn;  // we were too slow, and another had the slot meanwhile
  if (message.step == Step::kGrant && (!granted_ || anew)) {
    granted_ = true;
    slot_ = message.slot;
    receiver_ = message.text;
    bytes_.resize(std::min(message.bytes, kMostBytes));
    started_ = clock_.Now();
    heard_ = own_.Now();
    BeginRound();
  } else if (message.step == Step::kSeen && granted_ && message.slot == slot_) {
    ++slot_.turn;
    heard_ = own_.Now();
    EndRound(message.ok);
  }
}

void SelfTest::BeginRound() {
  seed_ = static_cast<uint64_t>(clock_.Now().time_since_epoch().count()) ^ reinterpret_cast<uintptr_t>(this);
  FillTestPattern(seed_, bytes_);
  round_began_ = clock_.Now();
  const auto failed = [self = shared_from_this(), slot = slot_](const absl::Status& status) {
    if (!status.ok()) self->OnWriteFailed(slot, status);
  };
  for (int i = 0; i < kWrites; ++i) transport_.Write(peer_, {{0, 0, 0}, slot_}, bytes_, failed);
  transport_.Flush(peer_, [self = shared_from_this(), slot = slot_](const absl::Status& status) {
    if (!status.ok()) return self->Finish(status);
    if (self->done_ == nullptr || !self->granted_ || self->slot_ != slot) return;
    self->heard_ = self->own_.Now();
    self->round_took_ = self->clock_.Now() - self->round_began_;
    self->send_(
        self->peer_,
        {.step = SelfTestMessage::Step::kFull, .slot = self->slot_, .bytes = self->bytes_.size(), .seed = self->seed_});
  });
}

/// Refused: another may have the slot by now. Once more with a grant of its own, but not for ever.
void SelfTest::OnWriteFailed(SlotTurn slot, const absl::Status& status) {
  if (done_ == nullptr || !granted_ || slot_ != slot) return;  // of a round that is over
  if (++failures_ > kMostFailures) return Finish(status);
  granted_ = false;
  asked_ = clock_.Now();
  heard_ = own_.Now();
  send_(peer_, {.step = SelfTestMessage::Step::kAsk});
}

void SelfTest::EndRound(bool ok) {
  if (!ok && ++failures_ > kMostFailures)
    return Finish(absl::DataLossError(StrCat("wrong bytes arrived in ", failures_, " rounds of the self-test")));
  if (ok && ++rounds_ > 1)
    rates_.push_back(static_cast<double>(kWrites * bytes_.size()) /
                     static_cast<double>(std::max<int64_t>(1, round_took_.count())));
  if (rounds_ < kRounds && (rates_.empty() || clock_.Now() - started_ < kLongEnough)) return BeginRound();
  Finish(absl::OkStatus());
}

void SelfTest::Finish(absl::Status status) {
  if (done_ == nullptr) return;
  const Done done = std::exchange(done_, nullptr);
  Result result{.path = transport_.path(peer_), .receiver = receiver_};
  if (status.ok()) {
    std::ranges::nth_element(rates_, rates_.begin() + static_cast<ptrdiff_t>(rates_.size() / 2));
    result.gigabytes_per_second = rates_[rates_.size() / 2];
  }
  send_(peer_, {.step = SelfTestMessage::Step::kOver,
                .slot = slot_,
                .ok = status.ok(),
                .gigabytes_per_second = result.gigabytes_per_second,
                .text = result.path});
  if (!status.ok()) return done(status);
  done(std::move(result));
}

}  // namespace baton
