// SpanExporter: --otlp-traces-endpoint. Takes finished requests from any thread without waiting, turns them into spans
// on a thread of its own and posts these to a collector (OTLP over HTTP, JSON). A collector that is slow, away or
// refuses costs spans, which are counted, and never a request anything.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "router/outbound/http_call.h"
#include "router/pausing_thread.h"
#include "router/telemetry/otlp_json.h"
#include "router/telemetry/span_batch.h"

namespace baton::router {

struct SpanExporterOptions {
  std::string endpoint;     ///< http:// or https://; without a path, /v1/traces
  std::string ca_file;      ///< whom to believe; empty: the system's
  double sample_ratio = 1;  ///< of the requests whose caller has not decided
  TraceResource resource;
};

class SpanExporter {
 public:
  /// InvalidArgument names the flag.
  static absl::StatusOr<std::unique_ptr<SpanExporter>> Start(const SpanExporterOptions& options, const Clock& clock);
  /// Sends what waits, for a second at most.
  ~SpanExporter();

  void Add(RequestTrace trace);
  SpanCounts counts() const;

 private:
  SpanExporter(SpanExporterOptions options, HttpPlace place, const Clock& clock);
  void Run();
  void TakeTraces();
  void Post(Duration patience, CallStop& stop);
  void Taken(const NotTaken& not_taken);

  const SpanExporterOptions options_;
  HttpCall call_;
  const Clock& clock_;
  CallStop stop_;
  SpanBatch batch_;           // the thread's
  bool said_partly_ = false;  ///< the thread's: the last batch was taken in part, and the log has it

  mutable std::mutex mutex_;  // guards what follows
  std::vector<RequestTrace> traces_;
  int64_t turned_away_ = 0;  ///< traces that found no room here
  SpanCounts counts_;
  PausingThread thread_;  // last: it uses all the others
};

}  // namespace baton::router
