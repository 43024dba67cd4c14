#include "engine/parallel/tcp_mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/errno_text.h"
#include "common/rank_loss.h"
#include "common/status.h"

namespace baton::engine {
namespace {

/// In place of a length: a note, between frames, with nothing behind it.
constexpr uint64_t kNote = ~uint64_t{0};

absl::Status Gone(int peer, const absl::Status& why) {
  return RankLoss(StrCat("rank ", peer, " is gone: ", View(why.message())));
}

}  // namespace

absl::Status TcpMesh::Push(const Out& out, Progress& at) {
  tls::Stream& stream = sockets_[static_cast<size_t>(out.peer)].stream();
  at.length = out.note ? kNote : out.data.size();
  while (!at.Done(out.data.size())) {
    iovec pieces[2];
    int count = 0;
    if (at.moved < sizeof(at.length)) {
      pieces[count++] = {reinterpret_cast<char*>(&at.length) + at.moved, sizeof(at.length) - at.moved};
    }
    const uint64_t sent = at.moved < sizeof(at.length) ? 0 : at.moved - sizeof(at.length);
    if (sent < out.data.size())
      pieces[count++] = {const_cast<std::byte*>(out.data.data()) + sent, out.data.size() - sent};
    const absl::StatusOr<size_t> n = stream.Write({pieces, static_cast<size_t>(count)});
    if (!n.ok()) return Gone(out.peer, n.status());
    if (*n == 0) return absl::OkStatus();
    at.moved += *n;
    ++moved_;
  }
  const absl::Status flushed = stream.Flush();
  return flushed.ok() ? flushed : Gone(out.peer, flushed);
}

absl::Status TcpMesh::Pull(const In& in, Progress& at) {
  tls::Stream& stream = sockets_[static_cast<size_t>(in.peer)].stream();
  while (!at.Done(in.data.size())) {
    const bool header = at.moved < sizeof(at.length);
    char* to = header ? reinterpret_cast<char*>(&at.length) + at.moved
                      : reinterpret_cast<char*>(in.data.data()) + (at.moved - sizeof(at.length));
    const size_t room = (header ? sizeof(at.length) : sizeof(at.length) + in.data.size()) - at.moved;
    const absl::StatusOr<size_t> n = stream.Read(to, room);
    if (!n.ok()) return Gone(in.peer, n.status());
    if (*n == 0) return absl::OkStatus();
    at.moved += *n;
    ++moved_;
    if (at.moved == sizeof(at.length) && at.length == kNote) {
      at.moved = 0;
    } else if (at.moved == sizeof(at.length) && at.length != in.data.size()) {
      return absl::InternalError(
          StrCat("rank ", in.peer, " sends ", at.length, " bytes, ", in.data.size(), " are expected"));
    }
  }
  return absl::OkStatus();
}

absl::Status TcpMesh::Note(int peer) {
  const Out note{peer, {}, /*note=*/true};
  return Exchange({&note, 1}, {});
}

absl::Status TcpMesh::Exchange(std::span<const Out> outs, std::span<const In> ins) {
  {
    std::lock_guard lock(mutex_);
    BATON_RETURN_IF_ERROR(broken_);
  }
  const absl::Status status = Move(outs, ins);
  waits_for_ = -1;
  if (status.ok()) return status;
  Abort(status);
  std::lock_guard lock(mutex_);
  return broken_;
}

absl::Status TcpMesh::Move(std::span<const Out> outs, std::span<const In> ins) {
  std::vector<Progress> sent(outs.size()), got(ins.size());
  std::vector<pollfd> waiting;
  for (;;) {
    waiting.clear();
    for (size_t i = 0; i < outs.size(); ++i) {
      const RankSocket& socket = sockets_[static_cast<size_t>(outs[i].peer)];
      BATON_RETURN_IF_ERROR(Push(outs[i], sent[i]));
      const bool all = sent[i].Done(outs[i].data.size()) && !socket.stream().unsent();
      if (!all) waiting.push_back({socket.get(), POLLOUT, 0});
    }
    for (size_t i = 0; i < ins.size(); ++i) {
      const RankSocket& socket = sockets_[static_cast<size_t>(ins[i].peer)];
      BATON_RETURN_IF_ERROR(Pull(ins[i], got[i]));
      if (!got[i].Done(ins[i].data.size())) waiting.push_back({socket.get(), POLLIN, 0});
    }
    if (waiting.empty()) return absl::OkStatus();
    const auto who = std::ranges::find(sockets_, waiting[0].fd, &RankSocket::get) - sockets_.begin();
    waits_for_ = static_cast<int>(who);
    // Whatever poll says of a socket, the next round finds out.
    if (poll(waiting.data(), waiting.size(), patience_ms_) == 0) {
      std::lock_guard lock(mutex_);
      lost_ = RankLoss(StrCat("rank ", who, " has not answered for ", patience_ms_.load(), " ms"));
      return lost_;
    }
  }
}

absl::Status TcpMesh::Lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

absl::Status TcpMesh::broken() const {
  std::lock_guard lock(mutex_);
  return broken_;
}

void TcpMesh::Abort(const absl::Status& why) {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return;
  broken_ = why;
  for (const RankSocket& socket : sockets_) {
    if (socket.get() >= 0) shutdown(socket.get(), SHUT_RDWR);
  }
  for (const auto& hook : hooks_) hook(why);
}

void TcpMesh::OnBroken(std::function<void(const absl::Status&)> hook) {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return hook(broken_);
  hooks_.push_back(std::move(hook));
}

}  // namespace baton::engine
