#include "engine/parallel/pulse.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

constexpr size_t kMostText = 400;
// What a byte on the wire says.
constexpr char kBeat = 'b';
constexpr char kEnd = 'e';   ///< the rank ends in order
constexpr char kLoss = 'x';  ///< the group is lost; what follows says why, in a line: a letter for its class, and text

// What another start would find as well; 'l': a RankLoss.
constexpr std::pair<char, absl::StatusCode> kClasses[] = {
    {'i', absl::StatusCode::kInvalidArgument}, {'n', absl::StatusCode::kNotFound},
    {'d', absl::StatusCode::kDataLoss},        {'f', absl::StatusCode::kFailedPrecondition},
    {'u', absl::StatusCode::kUnimplemented},   {'m', absl::StatusCode::kResourceExhausted}};

char LetterOf(const absl::Status& why) {
  const auto* known = std::ranges::find(kClasses, why.code(), &std::pair<char, absl::StatusCode>::second);
  return known == std::end(kClasses) ? 'l' : known->first;
}

// Of what `who` has said.
absl::Status Told(std::string_view who, std::string_view words) {
  const std::string text = Printable(words.substr(std::min<size_t>(1, words.size())), 2 * kMostText);
  const auto* known = words.empty() ? std::end(kClasses)
                                    : std::ranges::find(kClasses, words[0], &std::pair<char, absl::StatusCode>::first);
  if (known == std::end(kClasses)) return RankLoss(StrCat("told by ", who, ": ", text));
  return absl::Status(known->second, text);
}

}  // namespace

Pulse::Pulse(std::vector<Peer> peers, std::function<void(const absl::Status&)> on_loss)
    : Pulse(std::move(peers), std::move(on_loss), Pace()) {}

Pulse::Pulse(std::vector<Peer> peers, std::function<void(const absl::Status&)> on_loss, Pace pace)
    : pace_(pace), on_loss_(std::move(on_loss)), stop_(eventfd(0, EFD_CLOEXEC)) {
  for (Peer& peer : peers) watched_.push_back({std::move(peer), clock_.Now()});
  thread_ = std::thread([this] { Run(); });
}

Pulse::~Pulse() {
  eventfd_write(stop_, 1);
  thread_.join();
  if (loss().ok()) Say(kEnd, "");
  close(stop_);
}

absl::Status Pulse::loss() const {
  std::lock_guard lock(mutex_);
  return loss_;
}

void Pulse::Fail(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!loss_.ok()) return;
    loss_ = why.ok() ? RankLoss("it ended") : why;
  }
  Say(kLoss, StrCat(std::string(1, LetterOf(why)), Printable(View(why.message()), kMostText), "\n"));
}

void Pulse::Say(char kind, std::string_view text) {
  const std::string line = StrCat(std::string(1, kind), text);
  for (const Watched& one : watched_) {
    if (!one.ended) Send(one, line);
  }
}

/// What the socket does not take at once is not said: it is full of older signs of life.
void Pulse::Send(const Watched& to, std::string_view text) {
  std::lock_guard lock(wire_);
  const iovec line{const_cast<char*>(text.data()), text.size()};
  to.peer.socket.stream().Write({&line, 1}).IgnoreError();
}

void Pulse::Run() {
  TimePoint beat = clock_.Now();
  for (;;) {
    if (clock_.Now() >= beat) {
      Beat();
      beat = clock_.Now() + pace_.interval;
    }
    std::vector<pollfd> ready = {{stop_, POLLIN, 0}};
    for (const Watched& one : watched_) ready.push_back({one.ended ? -1 : one.peer.socket.get(), POLLIN, 0});
    const auto wait = static_cast<int>(Milliseconds(beat - clock_.Now())) + 1;
    poll(ready.data(), ready.size(), std::max(1, wait));
    if (ready[0].revents != 0 || !loss().ok()) return;
    for (Watched& one : watched_) {
      bool more = !one.ended;
      while (more) {
        if (const absl::Status status = Hear(one, more); !status.ok()) return Lose(status);
      }
    }
  }
}

void Pulse::Beat() {
  for (const Watched& one : watched_) {
    if (!one.ended) Send(one, std::string_view(&kBeat, 1));
  }
}

absl::StatusOr<size_t> Pulse::Read(const Watched& from, std::span<char> bytes, bool& more) {
  std::lock_guard lock(wire_);
  tls::Stream& stream = from.peer.socket.stream();
  const absl::StatusOr<size_t> n = stream.Read(bytes.data(), bytes.size());
  more = n.ok() && stream.holds();
  return n;
}

absl::Status Pulse::Hear(Watched& one, bool& more) {
  char bytes[512];
  const absl::StatusOr<size_t> n = Read(one, bytes, more);
  const std::string who = StrCat("rank ", one.peer.rank);
  if (n.ok() && *n == 0) {
    const Duration silent = clock_.Now() - one.heard;
    if (silent <= pace_.silence) return absl::OkStatus();
    return RankLoss(StrCat(who, " has shown no sign of life for ", static_cast<int>(Milliseconds(silent)), " ms"));
  }
  if (!n.ok() && one.dying) return Told(who, one.last_words);
  if (!n.ok()) return RankLoss(StrCat(who, " is gone: ", View(n.status().message())));
  one.heard = clock_.Now();
  for (const char c : std::string_view(bytes, *n)) {
    if (one.dying) {
      if (c == '\n') return Told(who, one.last_words);
      if (one.last_words.size() < kMostText) one.last_words += c;
    } else if (c == kEnd) {
      one.ended = true;
    } else if (c == kLoss) {
      one.dying = true;
    }
  }
  return absl::OkStatus();
}

void Pulse::Lose(const absl::Status& why) {
  Fail(why);
  on_loss_(why);
}

}  // namespace baton::engine
