#include <unistd.h>

#include <latch>
#include <mutex>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/rank_loss.h"
#include "common/status.h"
#include "engine/parallel/local_communicator.h"
#include "worker/ranks/rank.h"
#include "worker/ranks/rank_host.h"
#include "worker/ranks/start_watch.h"
#include "worker/ranks/step_watch.h"

namespace baton::worker {
namespace {

using engine::Communicator;

class RankThreads final : public RankHost {
 public:
  explicit RankThreads(const WorkerConfig& config)
      : config_(config), start_(config.ranks(), std::chrono::milliseconds(config.rank_start_timeout_ms)) {
    const int tensor = config.tensor_parallel_size;
    std::vector<std::unique_ptr<Communicator>> world = engine::MakeLocalGroup(config.ranks());
    for (int stage = 0; stage < config.pipeline_parallel_size; ++stage) {
      std::vector<std::unique_ptr<Communicator>> group = engine::MakeLocalGroup(tensor);
      for (int t = 0; t < tensor; ++t) {
        ends_.push_back({std::move(world[static_cast<size_t>(stage * tensor + t)]),
                         tensor > 1 ? std::move(group[static_cast<size_t>(t)]) : nullptr});
      }
    }
    ends_[0].world->OnBroken([this](const absl::Status& why) {
      std::lock_guard lock(mutex_);
      broken_ = why;
    });
  }
  ~RankThreads() override {
    AbortAll(absl::UnavailableError("the worker ends"));
    over_.count_down();
  }

  absl::Status Start() {
    for (int rank = 1; rank < config_.ranks(); ++rank) {
      BATON_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create());
      threads_.emplace_back([this, rank, theirs = dup(memory.descriptor())] { Run(rank, SharedMemory::Of(theirs)); });
      kv_.push_back(std::move(memory));
    }
    return absl::OkStatus();
  }

  engine::RankLinks links() override { return LinksOf(ends_[0]); }
  std::vector<SharedMemory>& kv() override { return kv_; }
  std::vector<DeviceKv> device_kv() override {
    std::lock_guard lock(mutex_);
    return device_kv_;
  }
  void Note(std::string_view phase, double fraction) override { start_.Note(0, phase, fraction); }
  void Started(std::shared_ptr<const std::atomic<uint64_t>> running) override {
    {
      std::lock_guard lock(mutex_);
      started_ = true;
    }
    start_.Over();
    watch_.Watch(std::move(running), std::chrono::milliseconds(config_.rank_timeout_ms));
  }
  absl::Status Health() override {
    {
      std::lock_guard lock(mutex_);
      BATON_RETURN_IF_ERROR(health_);
    }
    BATON_RETURN_IF_ERROR(Broken());
    if (const absl::Status start = start_.Health({}); !start.ok()) {
      AbortAll(start);  // who waits for another goes on, and the start ends
      return start;
    }
    return watch_.Health();
  }

 private:
  struct Ends {
    std::unique_ptr<Communicator> world, tensor;
  };
  static engine::RankLinks LinksOf(const Ends& ends) {
    return {.tensor = ends.tensor.get(), .world = ends.world.get()};
  }

  // A step of rank 0 went wrong: the others may wait for its part, and hear of nothing.
  absl::Status Broken() {
    absl::Status why;
    {
      std::lock_guard lock(mutex_);
      why = broken_;
    }
    if (why.ok()) return why;
    AbortAll(why);
    return IsRankLoss(why) ? why : RankLoss(View(why.message()));
  }

  void AbortAll(const absl::Status& why) {
    for (const Ends& ends : ends_) {
      if (ends.world) ends.world->Abort(why);
      if (ends.tensor) ends.tensor->Abort(why);
    }
  }

  void Run(int rank, SharedMemory kv) {
    const engine::RankLinks links = LinksOf(ends_[static_cast<size_t>(rank)]);
    RankHooks hooks;
    hooks.on_progress = [this, rank](std::string_view phase, double part) { start_.Note(rank, phase, part); };
    hooks.on_device_kv = [this, rank](const DeviceKv& theirs) {
      std::lock_guard lock(mutex_);
      device_kv_.resize(static_cast<size_t>(config_.ranks()) - 1);
      device_kv_[static_cast<size_t>(rank) - 1] = theirs;
    };
    // Rank 0 may still move the KV of a rank whose steps are over.
    hooks.on_end = [this, rank, &links](const absl::Status& status) {
      Report(rank, links, status);
      if (config_.on_gpu()) over_.wait();
    };
    Report(rank, links, RunRank(config_, rank, links, std::move(kv), hooks));
  }

  void Report(int rank, const engine::RankLinks& links, const absl::Status& status) {
    if (status.ok()) return;
    for (Communicator* link : {links.world, links.tensor}) {
      if (link != nullptr) link->Abort(status);
    }
    std::lock_guard lock(mutex_);
    if (!health_.ok()) return;
    const bool lost = started_ || absl::IsUnavailable(status);
    if (IsRankLoss(status)) {
      health_ = status;
    } else {
      const std::string words = OfRank(rank, View(status.message()));
      health_ = lost ? RankLoss(words) : absl::Status(status.code(), words);
    }
  }

  const WorkerConfig config_;
  std::vector<Ends> ends_;  ///< by rank
  std::vector<SharedMemory> kv_;
  std::mutex mutex_;
  absl::Status health_, broken_;  ///< guarded by mutex_, as what follows; of a rank's end, of the links
  bool started_ = false;
  std::vector<DeviceKv> device_kv_;
  StartWatch start_;
  StepWatch watch_;
  std::latch over_{1};
  std::vector<std::jthread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankHost>> StartRankThreads(const WorkerConfig& config) {
  if (config.ranks() == 1) return std::unique_ptr<RankHost>();
  auto ranks = std::make_unique<RankThreads>(config);
  BATON_RETURN_IF_ERROR(ranks->Start());
  return std::unique_ptr<RankHost>(std::move(ranks));
}

}  // namespace baton::worker
