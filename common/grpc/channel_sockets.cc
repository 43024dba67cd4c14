#include "common/grpc/channel_sockets.h"

#include <grpc/grpc.h>
#include <grpc/support/sync.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/net/held_socket.h"
#include "common/net/received_bytes.h"

// gRPC's C core declares this type in public and passes it in public (GRPC_ARG_SOCKET_MUTATOR), and keeps what is in it
// to itself: its layout since 2015, with a fourth function since 2021, which may be null. channel_sockets_test fails
// where it is another.
struct BatonSocketMutatorFunctions {
  bool (*mutate)(int fd, grpc_socket_mutator* self);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* self);
  bool (*mutate_for)(const void* what, grpc_socket_mutator* self);
};
struct grpc_socket_mutator {
  const BatonSocketMutatorFunctions* functions;
  gpr_refcount uses;
};

namespace baton::net {
namespace {

/// A message costs its sender a frame or two and its call some headers, which are not told of.
constexpr uint64_t kAroundAMessage = 1024, kTimesAMessage = 4;
/// Soon from this part of what may come.
constexpr double kSoonFrom = 16;
constexpr Duration kSoon = std::chrono::milliseconds(10), kLater = std::chrono::milliseconds(100);

}  // namespace

struct ChannelSockets::Opened {
  struct One {
    int fd;
    uint64_t inode, bytes = 0;  ///< bytes: at the latest look
  };
  std::mutex mutex;
  std::vector<One> all;

  void Add(int fd) {
    std::lock_guard lock(mutex);
    std::erase_if(all, [](const One& one) { return SocketInode(one.fd) != one.inode; });
    all.push_back({fd, SocketInode(fd)});
  }
  /// Calls `then` with a descriptor of each that is open: gRPC may close its own at any moment.
  template <typename Then>
  void ForEach(const Then& then) {
    std::lock_guard lock(mutex);
    std::erase_if(all, [&](One& one) {
      const HeldSocket held(one.fd, one.inode);
      if (held.open()) then(held.fd(), one);
      return !held.open();
    });
  }
};

namespace {

/// What gRPC calls with each socket before it is connected.
template <typename Opened>
struct Told : grpc_socket_mutator {
  std::shared_ptr<Opened> opened;

  static bool Tell(int fd, grpc_socket_mutator* self) {
    static_cast<Told*>(self)->opened->Add(fd);
    return true;
  }
  static int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) { return a < b ? -1 : a > b ? 1 : 0; }
  static void Destroy(grpc_socket_mutator* self) { delete static_cast<Told*>(self); }
};

template <typename Opened>
constexpr BatonSocketMutatorFunctions kFunctions = {Told<Opened>::Tell, Told<Opened>::Compare, Told<Opened>::Destroy,
                                                    nullptr};

}  // namespace

ChannelSockets::ChannelSockets(Limits limits) : limits_(limits), opened_(std::make_shared<Opened>()) {}
ChannelSockets::~ChannelSockets() = default;

void ChannelSockets::Join(grpc::ChannelArguments& args) {
  auto told = std::make_unique<Told<Opened>>();
  told->functions = &kFunctions<Opened>;
  gpr_ref_init(&told->uses, 1);
  told->opened = opened_;
  args.SetSocketMutator(told.release());  // owned by the arguments and by whoever copies them
}

void ChannelSockets::Took(size_t bytes) { taken_ += bytes * kTimesAMessage + kAroundAMessage; }

uint64_t ChannelSockets::EndFlood(TimePoint now) {
  std::lock_guard lock(mutex_);
  uint64_t came = 0;
  opened_->ForEach([&](int fd, Opened::One& one) {
    const uint64_t bytes = ReceivedBytes(fd);
    came += bytes - std::min(bytes, one.bytes);
    one.bytes = bytes;
  });
  const double forgotten = looked_ == TimePoint{} ? 0 : Seconds(now - looked_) * limits_.bytes_each_second;
  looked_ = now;
  over_ = std::max(0.0, over_ + static_cast<double>(came) - static_cast<double>(taken_.exchange(0)) - forgotten);
  if (over_ <= static_cast<double>(limits_.bytes)) return 0;
  opened_->ForEach([](int fd, const Opened::One&) { shutdown(fd, SHUT_RDWR); });
  return static_cast<uint64_t>(std::exchange(over_, 0.0));
}

bool ChannelSockets::HasUnread() const {
  bool any = false;
  opened_->ForEach([&any](int fd, const Opened::One&) {
    int bytes = 0;
    any |= ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
  });
  return any;
}

TimePoint ChannelSockets::NextLook() const {
  std::lock_guard lock(mutex_);
  return looked_ + (over_ * kSoonFrom > static_cast<double>(limits_.bytes) ? kSoon : kLater);
}

}  // namespace baton::net
