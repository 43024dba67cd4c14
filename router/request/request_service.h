// RequestService: the way in for both frontends. Admits a request, prepares it (long texts on the text pool), starts
// its RequestDriver. Thread-safe; a request's own calls belong to the loop given.
#pragma once

#include <atomic>
#include <memory>

#include "router/fleet/fleet.h"
#include "router/request/request_driver.h"
#include "router/request/request_input.h"
#include "router/request/text_pool.h"

namespace baton::router {

/// A text of more bytes is not even compared with those that came before on a loop.
inline constexpr size_t kMostLookedAt = 512 << 10;

/// A submitted request. Use on its loop's thread only.
class RequestHandle {
 public:
  void ClientGone();
  void OutputDrained();

 private:
  friend class RequestService;
  std::shared_ptr<RequestDriver> call_;
  KeyAccount* account_ = nullptr;   // null: nobody's
  std::atomic<bool> gone_ = false;  // the text pool looks, too: nobody waits for the text of a client that left
};

class RequestService {
 public:
  /// `grammars`: for requests whose grammar is to be compiled, so that no text waits for one.
  RequestService(const CallServices& services, Fleet& fleet, TextPool& pool, TextPool& grammars)
      : services_(services), fleet_(fleet), pool_(pool), grammars_(grammars) {}

  /// On the loop's thread. The sink hears of everything, also of refusal, perhaps before this returns.
  std::shared_ptr<RequestHandle> Submit(EventLoop& loop, RequestInput input, std::shared_ptr<AnswerSink> sink);

  /// Runs `work` in place or on the text pool by `text_bytes`, in the turn of `owner` (null: nobody's), then `then` on
  /// the loop with its result; 429 when the owner's part of the pool's queue is full.
  template <class Work, class Then>
  void RunText(EventLoop& loop, size_t text_bytes, const KeyAccount* owner, Work work, Then then) {
    RunText(pool_, loop, text_bytes, owner, std::move(work), std::move(then));
  }

  /// The answer of /ready.
  Readiness ReadinessNow() const;
  const CallServices& services() const { return services_; }
  Fleet& fleet() const { return fleet_; }
  size_t texts_queued() const { return pool_.queued() + grammars_.queued(); }

 private:
  static std::string NameOf(const KeyAccount* owner);
  ApiError PoolFull(const TextPool& pool) const;
  TextPool& PoolOf(const RequestInput& input) const;
  template <class Work, class Then>
  void RunText(TextPool& pool, EventLoop& loop, size_t text_bytes, const KeyAccount* owner, Work work, Then then);
  void Begin(EventLoop& loop, const std::shared_ptr<RequestHandle>& handle,
             std::variant<PreparedRequest, ApiError> prepared, TimePoint arrived, AdmissionHold place,
             std::unique_ptr<RequestTrail> trail, std::shared_ptr<AnswerSink> sink);

  const CallServices services_;
  Fleet& fleet_;
  TextPool& pool_;
  TextPool& grammars_;
};

template <class Work, class Then>
void RequestService::RunText(TextPool& pool, EventLoop& loop, size_t text_bytes, const KeyAccount* owner, Work work,
                             Then then) {
  if (text_bytes <= kShortTextBytes) return then(work());
  auto shared_then = std::make_shared<Then>(std::move(then));
  const bool queued = pool.TryRun(NameOf(owner), [&loop, work = std::move(work), shared_then]() mutable {
    loop.Post([result = work(), shared_then]() mutable { (*shared_then)(std::move(result)); });
  });
  if (!queued) (*shared_then)(PoolFull(pool));
}

}  // namespace baton::router
