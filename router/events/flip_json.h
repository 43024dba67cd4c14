// A change of a worker's role as /workers and the event stream say it.
#pragma once

#include "router/fleet/flip_book.h"
#include "router/json_writer.h"

namespace baton::router {

/// The field `flip` of an object.
inline void WriteFlip(const FlipView& flip, JsonWriter& w) {
  w.Key("flip").BeginObject().Field("to", WorkerRoleName(flip.to)).Field("stage", FlipStageName(flip.stage));
  w.NullIfEmpty("why", flip.why).Field("drain_ms", flip.drain_ms).Field("change_ms", flip.change_ms);
  w.Field("took_ms", flip.took_ms).EndObject();
}

}  // namespace baton::router
