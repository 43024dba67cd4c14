// AttachEntry: an Attach as an entry of RelayUp's bytes. A long prompt's ids are most of a request to a worker, and
// here they are copied once, into the memory that the socket is fed from; as a message they would be copied twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/worker.pb.h"
#include "router/fleet/leg_order.h"
#include "router/request_types.h"

namespace baton::router {

/// Any thread. Its arguments must outlive it.
class AttachEntry {
 public:
  AttachEntry(const TokenizedRequest& generation, const AttachLeg& leg);
  size_t size() const;  ///< bytes
  /// Writes size() bytes. They parse as a RelayUp whose one attach is EncodeAttach's.
  void Write(uint8_t* out) const;

 private:
  size_t IdBytes() const;
  size_t MessageBytes() const;
  const TokenizedRequest& generation_;
  const AttachLeg& leg_;
  const v1::Attach head_;  // all but the token ids
  const size_t head_bytes_;
};

}  // namespace baton::router
