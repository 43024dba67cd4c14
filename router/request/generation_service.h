// GenerationService: the way in for both frontends. Admits a request, prepares it (long texts on the text pool), starts
// its GenerationCall. Thread-safe; a request's own calls belong to the executor given.
#pragma once

#include <memory>

#include "router/fleet/fleet.h"
#include "router/request/generation_call.h"
#include "router/request/generation_input.h"
#include "router/request/text_pool.h"

namespace baton::router {

/// A submitted request. Use on its executor's thread only.
class GenerationHandle {
 public:
  void ClientGone();
  void OutputDrained();

 private:
  friend class GenerationService;
  std::shared_ptr<GenerationCall> call_;
  bool gone_ = false;
};

class GenerationService {
 public:
  GenerationService(const CallServices& services, Fleet& fleet, TextPool& pool)
      : services_(services), fleet_(fleet), pool_(pool) {}

  /// On the executor's thread. The sink hears of everything, also of refusal, perhaps before this returns.
  std::shared_ptr<GenerationHandle> Submit(Executor& executor, GenerationInput input,
                                           std::shared_ptr<GenerationSink> sink);

  /// Runs `work` in place or on the text pool by `text_bytes`, then `then` on the executor with its result; 429 when
  /// the pool's queue is full.
  template <class Work, class Then>
  void RunText(Executor& executor, size_t text_bytes, Work work, Then then);

  /// What /ready answers.
  Readiness ReadinessNow() const;
  const CallServices& services() const { return services_; }
  Fleet& fleet() const { return fleet_; }
  size_t texts_queued() const { return pool_.queued(); }

 private:
  ApiError PoolFull() const;
  void Begin(Executor& executor, const std::shared_ptr<GenerationHandle>& handle,
             std::variant<PreparedGeneration, ApiError> prepared, TimePoint arrived, AdmissionTicket place,
             std::shared_ptr<GenerationSink> sink);

  const CallServices services_;
  Fleet& fleet_;
  TextPool& pool_;
};

template <class Work, class Then>
void GenerationService::RunText(Executor& executor, size_t text_bytes, Work work, Then then) {
  if (text_bytes <= kShortTextBytes) return then(work());
  auto shared_then = std::make_shared<Then>(std::move(then));
  const bool queued = pool_.TryRun([&executor, work = std::move(work), shared_then]() mutable {
    executor.Post([result = work(), shared_then]() mutable { (*shared_then)(std::move(result)); });
  });
  if (!queued) (*shared_then)(PoolFull());
}

}  // namespace baton::router
