// HeldSocket: a socket whose descriptor somebody else closes whenever he likes. Threads: any.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>

namespace baton::net {

/// Which socket a descriptor is; 0: none, or it is closed.
inline uint64_t SocketInode(int fd) {
  struct stat found{};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

/// Two descriptors of one thing that is no socket. `slot` is that of a held socket meanwhile, one at a time, so that
/// one can be held where this process may open no more files.
struct SpareDescriptor {
  int slot = -1, other = -1;
};

/// A descriptor of our own, so that the socket stays the one that was looked at.
class HeldSocket {
 public:
  /// Not open where `fd` is not the socket `inode` any more.
  HeldSocket(int fd, uint64_t inode, SpareDescriptor spare = {})
      : spare_(spare),
        fd_(spare.slot < 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : dup3(fd, spare.slot, O_CLOEXEC)),
        open_(fd_ >= 0 && SocketInode(fd_) == inode) {}
  ~HeldSocket() {
    if (fd_ < 0) return;
    spare_.slot < 0 ? close(fd_) : dup3(spare_.other, spare_.slot, O_CLOEXEC);
  }
  HeldSocket(const HeldSocket&) = delete;
  HeldSocket& operator=(const HeldSocket&) = delete;

  bool open() const { return open_; }
  int fd() const { return fd_; }

 private:
  const SpareDescriptor spare_;
  const int fd_;
  const bool open_;
};

}  // namespace baton::net
