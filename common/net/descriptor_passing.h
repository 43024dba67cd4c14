// Descriptors that travel over a unix socket beside bytes (SCM_RIGHTS): how the memory of KV is given to another
// process.
#pragma once

#include <sys/socket.h>

namespace baton {

/// The room beside a message of sendmsg or recvmsg, for one call. It must outlive the call.
class PassedDescriptors {
 public:
  /// `message` will carry `descriptor`, which stays the caller's.
  void Carry(int descriptor, msghdr& message);
  /// `message` takes what comes.
  void Receive(msghdr& message);
  /// Of a message that came: the first descriptor becomes `kept`, unless there is one (-1: none), and is the caller's;
  /// the rest is closed. The kernel has closed those that found no room.
  static void Keep(const msghdr& message, int& kept);

 private:
  alignas(cmsghdr) char bytes_[CMSG_SPACE(4 * sizeof(int))] = {};
};

}  // namespace baton
