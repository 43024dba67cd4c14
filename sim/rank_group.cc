#include "sim/rank_group.h"

#include <algorithm>
#include <utility>

#include "worker/transfer/kv_pool_view.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

KvSide SideOfRole(const ClusterScenario& scenario, v1::WorkerRole role, const KvLayout& kept) {
  KvSide side{.layout = kept};
  int layers = 0;
  for (KvGroup& group : side.layout.groups) {
    group.layers.resize(static_cast<size_t>(scenario.layers));
    for (int& layer : group.layers) layer = layers++;
    for (KvPlane& plane : group.planes) plane.heads = scenario.heads;
  }
  const bool prefills = role == v1::WORKER_ROLE_PREFILL;
  side.tensor_parallel_size = prefills ? scenario.prefill_tensor : scenario.decode_tensor;
  side.stage_layers = {0, layers};
  if ((prefills ? scenario.prefill_stages : scenario.decode_stages) == 2)
    side.stage_layers = {0, 1 + scenario.stage_cut % (layers - 1), layers};
  return side;
}

KvPoolView PoolOfRank(const engine::KvMemory& memory, const KvSide& side, int heads, int rank) {
  const IntRange layers = side.LayersOf(rank);
  KvPoolView view;
  for (size_t g = 0; g < side.layout.groups.size(); ++g) {
    const KvGroup& told = side.layout.groups[g];
    const std::vector<kernels::KvLayerView>& kept = memory.groups()[g].layers;
    KvPoolView::Group& group = view.groups.emplace_back();
    group.blocks = memory.num_blocks()[g];
    for (size_t l = 0; l < told.layers.size(); ++l) {
      if (told.layers[l] < layers.begin || told.layers[l] >= layers.end) continue;
      group.layers.push_back(told.layers[l]);
      std::vector<KvPlaneMemory>& planes = group.planes.emplace_back(2);
      for (size_t p = 0; p < planes.size(); ++p) {
        const IntRange mine = side.HeadsOf(rank, told.planes[p]);
        for (int head = mine.begin; head < mine.end; ++head) {
          const kernels::KvLayerView& layer = kept[l * static_cast<size_t>(heads) + static_cast<size_t>(head)];
          const kernels::KvPlaneView& plane = p == 0 ? layer.k : layer.v;
          KvPlaneMemory piece{.base = static_cast<std::byte*>(plane.base),
                              .block_stride_bytes = plane.block_stride_bytes,
                              .digests = plane.digests,
                              .digest_block_stride = plane.digest_block_stride,
                              .heads = {head - mine.begin, head - mine.begin + 1},
                              .scale = plane.scale};
          if (head == mine.begin) {
            planes[p] = std::move(piece);
          } else {
            planes[p].others.push_back(std::move(piece));
          }
        }
      }
    }
  }
  return view;
}

void RankGroup::RankLoop::Post(std::function<void()> work) {
  loop_.Post([this, work = std::move(work)]() mutable { Do(std::move(work)); });
}

void RankGroup::RankLoop::Watch(Transport* transport) {
  transports_.push_back(transport);
  if (!hangs_) loop_.Watch(transport);
}

void RankGroup::RankLoop::Unwatch(Transport* transport) {
  std::erase(transports_, transport);
  loop_.Unwatch(transport);
}

void RankGroup::RankLoop::Do(std::function<void()> work) {
  if (hangs_) return held_.push_back(std::move(work));
  work();
}

void RankGroup::RankLoop::Hang(bool hangs) {
  hangs_ = hangs;
  for (Transport* transport : transports_) hangs ? loop_.Unwatch(transport) : loop_.Watch(transport);
  if (hangs) return;
  for (auto& work : std::exchange(held_, {})) loop_.Post(std::move(work));
}

RankGroup::RankGroup(WorkerNode& node, WorkerNode::Loop& loop, const engine::KvMemory& memory, const KvSide& side,
                     worker::CarrierFactory make, Transports transports)
    : node_(node), loop_(loop), lines_(static_cast<size_t>(side.ranks())), carriers_(lines_.size()) {
  for (int rank = 0; rank < side.ranks(); ++rank) loops_.push_back(std::make_unique<RankLoop>(loop));
  config_.landing_slots = node.plant().scenario.landing_slots;
  config_.landing_slot_bytes = node.plant().scenario.slot_bytes;
  for (int rank = 1; rank < side.ranks(); ++rank) {
    worker::CarrierContext context{.config = config_,
                                   .rank = rank,
                                   .pool = PoolOfRank(memory, side, node.plant().scenario.heads, rank),
                                   .side = side,
                                   .model_digest = "m",
                                   .incarnation = node.incarnation(),
                                   .numerics_id = node.numerics_id(),
                                   .clock = node.plant().time,
                                   .thread = *loops_[static_cast<size_t>(rank)],
                                   .tell = [this, rank](const RankNews& news) { Tell(rank, news); }};
    context.kv_protocol = node.kv_protocol();
    context.make = transports(rank);
    carriers_[static_cast<size_t>(rank)] = make(context).value();
  }
}

void RankGroup::Listen(OnNews on_news) {
  on_news_ = std::move(on_news);
  if (!on_news_) return;
  for (const auto& [rank, news] : std::exchange(first_news_, {})) on_news_(rank, news);
}

Duration RankGroup::Behind(TimePoint& last) {
  const Plant& plant = node_.plant();
  Duration takes = plant.time.Between(microseconds(20), microseconds(200));
  if (plant.faults_on && plant.time.Chance(plant.scenario.busy))
    takes += plant.time.Between(microseconds(100), milliseconds(20));
  last = std::max(last, plant.time.Now() + takes);
  return last - plant.time.Now();
}

void RankGroup::Send(int rank, const RankOrder& order) {
  Line& line = lines_.at(static_cast<size_t>(rank));
  if (line.broken) return;
  node_.Post(Behind(line.orders_at), [this, here = std::weak_ptr(here_), rank, bytes = EncodeRankOrder(order)] {
    if (here.expired() || lines_[static_cast<size_t>(rank)].broken) return;
    loops_[static_cast<size_t>(rank)]->Do([this, rank, bytes] {
      if (auto& carrier = carriers_[static_cast<size_t>(rank)]) carrier->Handle(DecodeRankOrder(bytes).value());
    });
    node_.WakeTransfer();
  });
}

/// What its threads have begun is under way still: its end comes behind that.
void RankGroup::Lose(int rank) {
  lines_.at(static_cast<size_t>(rank)).broken = true;
  loop_.Post([this, rank] { carriers_[static_cast<size_t>(rank)] = nullptr; });
}

void RankGroup::Tell(int rank, const RankNews& news) {
  if (!on_news_) return first_news_.emplace_back(rank, news), void();
  Line& line = lines_[static_cast<size_t>(rank)];
  if (line.broken) return;
  node_.Post(Behind(line.news_at), [this, here = std::weak_ptr(here_), rank, bytes = EncodeRankNews(news)] {
    if (here.expired() || lines_[static_cast<size_t>(rank)].broken || !on_news_) return;
    on_news_(rank, DecodeRankNews(bytes).value());
  });
}

}  // namespace baton::sim
