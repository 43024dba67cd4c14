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

/// A frame's progress on one socket, in one direction: an 8-byte length, then the bytes.
struct Progress {
  uint64_t length = 0;
  uint64_t moved = 0;  ///< of both
  bool Done(uint64_t bytes) const { return moved == sizeof(length) + bytes; }
};

absl::Status Gone(int peer, const absl::Status& why) {
  return RankLoss(StrCat("rank ", peer, " is gone: ", View(why.message())));
}

absl::Status Push(tls::Stream& stream, const TcpMesh::Out& out, Progress& at) {
  at.length = out.data.size();
  while (!at.Done(at.length)) {
    iovec pieces[2];
    int count = 0;
    if (at.moved < sizeof(at.length)) {
      pieces[count++] = {reinterpret_cast<char*>(&at.length) + at.moved, sizeof(at.length) - at.moved};
    }
    const uint64_t sent = at.moved < sizeof(at.length) ? 0 : at.moved - sizeof(at.length);
    if (sent < at.length) pieces[count++] = {const_cast<std::byte*>(out.data.data()) + sent, at.length - sent};
    const absl::StatusOr<size_t> n = stream.Write({pieces, static_cast<size_t>(count)});
    if (!n.ok()) return Gone(out.peer, n.status());
    if (*n == 0) return absl::OkStatus();
    at.moved += *n;
  }
  const absl::Status flushed = stream.Flush();
  return flushed.ok() ? flushed : Gone(out.peer, flushed);
}

absl::Status Pull(tls::Stream& stream, const TcpMesh::In& in, Progress& at) {
  while (!at.Done(in.data.size())) {
    const bool header = at.moved < sizeof(at.length);
    char* to = header ? reinterpret_cast<char*>(&at.length) + at.moved
                      : reinterpret_cast<char*>(in.data.data()) + (at.moved - sizeof(at.length));
    const size_t room = (header ? sizeof(at.length) : sizeof(at.length) + in.data.size()) - at.moved;
    const absl::StatusOr<size_t> n = stream.Read(to, room);
    if (!n.ok()) return Gone(in.peer, n.status());
    if (*n == 0) return absl::OkStatus();
    at.moved += *n;
    if (at.moved == sizeof(at.length) && at.length != in.data.size()) {
      return absl::InternalError(
          StrCat("rank ", in.peer, " sends ", at.length, " bytes, ", in.data.size(), " are expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TcpMesh::Exchange(std::span<const Out> outs, std::span<const In> ins) {
  {
    std::lock_guard lock(mutex_);
    BATON_RETURN_IF_ERROR(broken_);
  }
  const absl::Status status = Move(outs, ins);
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
      BATON_RETURN_IF_ERROR(Push(socket.stream(), outs[i], sent[i]));
      const bool all = sent[i].Done(outs[i].data.size()) && !socket.stream().unsent();
      if (!all) waiting.push_back({socket.get(), POLLOUT, 0});
    }
    for (size_t i = 0; i < ins.size(); ++i) {
      const RankSocket& socket = sockets_[static_cast<size_t>(ins[i].peer)];
      BATON_RETURN_IF_ERROR(Pull(socket.stream(), ins[i], got[i]));
      if (!got[i].Done(ins[i].data.size())) waiting.push_back({socket.get(), POLLIN, 0});
    }
    if (waiting.empty()) return absl::OkStatus();
    // Whatever poll says of a socket, the next round finds out.
    if (poll(waiting.data(), waiting.size(), patience_ms_) == 0) {
      const auto who = std::ranges::find(sockets_, waiting[0].fd, &RankSocket::get) - sockets_.begin();
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
