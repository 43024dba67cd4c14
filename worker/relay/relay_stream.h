// One router's relay stream on gRPC: reads a message at a time, writes from a bounded queue. No decisions here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "proto/worker.grpc.pb.h"
#include "worker/relay/open_streams.h"
#include "worker/relay/prefill_stream.h"
#include "worker/relay/wire_stream.h"

namespace baton::worker {

/// Where a stream is kept until its end. Both outlive it.
struct StreamPlace {
  grpc::CallbackServerContext& context;  ///< of the stream
  OpenStreams& streams;
  uint64_t Enter(OpenStreams::Kind kind, std::shared_ptr<OpenStream> stream) const {
    return streams.Enter(kind, context.peer(), std::move(stream));
  }
};

/// The worker's end of a relay stream. Called on gRPC's threads.
struct RelayHandlers {
  std::string router;  ///< whose stream it is (RouterSessions::Check)
  /// A message came. `next` must be called once it was handled (any thread): it starts the next read, so a router can
  /// never have more than one unhandled message queued here.
  std::function<void(std::shared_ptr<RelayWriter>, std::shared_ptr<const v1::RelayUp>, std::function<void()> next)>
      on_message;
  /// The stream ended, for whatever reason. Once.
  std::function<void(std::shared_ptr<RelayWriter>)> on_end;
};

/// Makes the reactor of a new stream; gRPC owns it until its OnDone.
grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* NewRelayReactor(StreamPlace place, RelayHandlers handlers);

/// Makes the reactor of a new watcher. `on_start` gets the sink at once, `on_end` once at the end.
grpc::ServerWriteReactor<v1::WorkerEvent>* NewWatchReactor(StreamPlace place,
                                                           std::function<void(std::shared_ptr<WatchSink>)> on_start,
                                                           std::function<void(std::shared_ptr<WatchSink>)> on_end);

/// Makes the reactor of a Prefill leg's answer. `on_start` gets the sink at once, `on_end` comes once at the end.
grpc::ServerWriteReactor<v1::PrefillReply>* NewPrefillReactor(
    StreamPlace place, std::function<void(std::shared_ptr<PrefillSink>)> on_start, std::function<void()> on_end);

}  // namespace baton::worker
