// A range of protocol versions on the wire. `Versions` has min and max (common/protocol_versions.h). Threads: any.
#pragma once

#include "proto/worker.pb.h"

namespace baton {

template <class Versions>
void EncodeVersions(const Versions& versions, v1::ProtocolRange& out) {
  out.set_min(versions.min);
  out.set_max(versions.max);
}

template <class Versions>
Versions DecodeVersions(const v1::ProtocolRange& in) {
  return {in.min(), in.max()};
}

}  // namespace baton
