// A model over ranks that are threads: rank 0 is the caller's, the others follow its steps. On the CPU, or each on a
// device of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/status.h"
#include "engine/model/kv_groups.h"
#include "engine/parallel/device_communicator.h"
#include "engine/parallel/local_communicator.h"
#include "engine/step/step_channel.h"
#include "kernels/cpu/cpu_ops.h"

namespace baton::engine {

class RankThreads {
 public:
  struct Shape {
    int tensor = 1, stages = 1, width = 1;
  };
  struct Options {
    ModelSource source;
    kernels::CpuOpsConfig ops{.dtype = DType::kF32};
    std::function<std::unique_ptr<kernels::Ops>(int rank)> device;  ///< else the CPU, by `ops`
    Shape shape;
    int max_tokens = 2048;
    int32_t blocks = 256;  ///< of every KV group
  };

  explicit RankThreads(Options options)
      : options_(std::move(options)), ranks_(options_.shape.tensor * options_.shape.stages) {
    const Shape& s = options_.shape;
    std::vector<std::unique_ptr<Communicator>> world = MakeLocalGroup(static_cast<int>(ranks_.size()));
    for (int stage = 0; stage < s.stages; ++stage) {
      std::vector<std::unique_ptr<Communicator>> group = MakeLocalGroup(s.tensor);
      for (int t = 0; t < s.tensor; ++t) ranks_[stage * s.tensor + t].tensor = std::move(group[t]);
    }
    {
      std::vector<std::jthread> loads;  // those on devices wait for each other
      for (size_t r = 0; r < ranks_.size(); ++r) {
        ranks_[r].world = std::move(world[r]);
        loads.emplace_back([this, r] { Load(static_cast<int>(r)); });
      }
    }
    if (ranks_.size() > 1) channel = std::make_unique<StepChannel>(*ranks_[0].world);
    for (size_t r = 1; r < ranks_.size(); ++r) followers_.emplace_back([this, r] { Follow(ranks_[r]); });
  }
  ~RankThreads() {
    if (channel) channel->End().IgnoreError();
  }

  Model& model() { return *ranks_[0].model; }
  kernels::Ops& ops() { return *ranks_[0].ops; }
  const KvLayout& layout() const { return ranks_[0].layout; }
  Communicator& world() { return *ranks_[0].world; }
  /// As a worker does: all links of a rank end together.
  void Abort(const absl::Status& why) {
    ranks_[0].world->Abort(why);
    ranks_[0].tensor->Abort(why);
  }
  size_t weight_bytes(int rank) const { return ranks_[static_cast<size_t>(rank)].model->weight_bytes(); }

  std::unique_ptr<StepChannel> channel;  ///< null: one rank

 private:
  struct Rank {
    std::unique_ptr<Communicator> world, tensor;
    std::unique_ptr<kernels::Ops> ops;
    std::optional<DeviceLinks> links;
    std::unique_ptr<Model> model;
    KvLayout layout;
    int first_head = 0;
  };
  void Load(int number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    const Shape& s = options_.shape;
    ModelSource source = options_.source;
    source.place = RankPlace::Of(number, s.tensor, s.stages, s.width);
    rank.ops = options_.device ? options_.device(number) : kernels::MakeCpuOps(options_.ops).value();
    RankLinks links;
    if (s.tensor > 1) links.tensor = rank.tensor.get();
    if (ranks_.size() > 1) links.world = rank.world.get();
    rank.links = DeviceLinks::Join(*rank.ops, links).value();
    rank.model = LoadModel(source, *rank.ops, options_.max_tokens, nullptr, rank.links->links()).value();
    const RankShape shape = ShapeOf(rank.model->config(), source.place);
    rank.layout = RankKvLayout(rank.model->kv_layout(), shape);
    rank.first_head = shape.kv_heads.begin;
  }
  void Follow(Rank& rank) {
    const std::vector<int32_t> blocks(rank.layout.groups.size(), options_.blocks);
    const auto memory = KvMemory::Create(rank.layout, blocks, *rank.ops, rank.first_head).value();
    StepChannel steps(*rank.world);
    FollowSteps(steps, *rank.model, *memory, *rank.ops).IgnoreError();
  }

  const Options options_;
  std::vector<Rank> ranks_;
  std::vector<std::jthread> followers_;
};

}  // namespace baton::engine
