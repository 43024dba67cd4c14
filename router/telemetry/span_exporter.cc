#include "router/telemetry/span_exporter.h"

#include <utility>

#include "common/log.h"
#include "common/random_word.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(200);  // for new traces
constexpr Duration kPostWithin = std::chrono::seconds(10), kLastPostWithin = std::chrono::seconds(1);
constexpr size_t kMostTraces = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<SpanExporter>> SpanExporter::Start(const SpanExporterOptions& options,
                                                                  const Clock& clock) {
  auto place = ParseHttpPlace(options.endpoint);
  if (!place.ok()) {
    return absl::InvalidArgumentError(
        StrCat("--otlp-traces-endpoint ", options.endpoint, ": ", place.status().message()));
  }
  if (place->path.empty() || place->path == "/") place->path = "/v1/traces";
  std::unique_ptr<SpanExporter> exporter(new SpanExporter(options, *std::move(place), clock));
  exporter->thread_.Start([raw = exporter.get()] { raw->Run(); });
  return exporter;
}

SpanExporter::SpanExporter(SpanExporterOptions options, HttpPlace place, const Clock& clock)
    : options_(std::move(options)),
      call_{std::move(place), "the collector of traces", "", "", options_.ca_file},
      clock_(clock) {
  call_.target = call_.place.path;
}

SpanExporter::~SpanExporter() {
  thread_.Stop([this] { stop_.Stop(); });
}

void SpanExporter::Add(RequestTrace trace) {
  const std::lock_guard lock(mutex_);
  if (traces_.size() < kMostTraces) {
    traces_.push_back(std::move(trace));
  } else {
    ++turned_away_;
  }
}

SpanCounts SpanExporter::counts() const {
  const std::lock_guard lock(mutex_);
  SpanCounts counts = counts_;
  counts.dropped += turned_away_;
  return counts;
}

void SpanExporter::Run() {
  while (thread_.Pause(kLook)) {
    TakeTraces();
    while (!batch_.empty() && clock_.Now() >= batch_.DueAt() && !thread_.stopping()) Post(kPostWithin, stop_);
  }
  TakeTraces();
  CallStop last;
  if (!batch_.empty()) Post(kLastPostWithin, last);
}

void SpanExporter::TakeTraces() {
  std::vector<RequestTrace> traces;
  {
    const std::lock_guard lock(mutex_);
    traces.swap(traces_);
  }
  for (const RequestTrace& trace : traces) batch_.Add(SpansOf(trace, options_.sample_ratio, RandomWord));
}

void SpanExporter::Taken(const NotTaken& not_taken) {
  batch_.Sent(clock_.Now(), not_taken.spans);
  const bool says = not_taken.spans > 0 || !not_taken.why.empty();
  if (says && !said_partly_)
    LogWarning("the collector of traces {} has not taken all spans, {} of them are given up: {}",
               call_.place.host_header, not_taken.spans, not_taken.why);
  said_partly_ = says;
}

void SpanExporter::Post(Duration patience, CallStop& stop) {
  call_.body = EncodeSpans(options_.resource, batch_.Next());
  const absl::StatusOr<std::string> answer = FetchWhole(call_, patience, stop);
  const absl::Status& status = answer.status();
  if (absl::IsCancelled(status)) return;  // the router ends: they are sent once more
  if (status.ok()) {
    Taken(ReadNotTaken(*answer));
  } else if (absl::IsFailedPrecondition(status)) {
    if (batch_.Refused(clock_.Now()))
      LogWarning("{}; spans that are answered so are given up and counted", std::string(status.message()));
  } else if (batch_.Failed(clock_.Now())) {
    LogWarning("{}; spans wait, at most {} of them, and are sent again", std::string(status.message()),
               SpanBatch::kMostWaiting);
  }
  const std::lock_guard lock(mutex_);
  counts_ = batch_.counts();
}

}  // namespace baton::router
