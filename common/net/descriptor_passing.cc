#include "common/net/descriptor_passing.h"

#include <unistd.h>

#include <cstring>

namespace baton {

void PassedDescriptors::Carry(int descriptor, msghdr& message) {
  message.msg_control = bytes_;
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
}

void PassedDescriptors::Receive(msghdr& message) {
  message.msg_control = bytes_;
  message.msg_controllen = sizeof(bytes_);
}

void PassedDescriptors::Keep(const msghdr& message, int& kept) {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(const_cast<msghdr*>(&message), head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(head) + (at - CMSG_LEN(0)), sizeof(int));
      if (kept < 0) {
        kept = descriptor;
      } else {
        close(descriptor);
      }
    }
  }
}

}  // namespace baton
