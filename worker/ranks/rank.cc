#include "worker/ranks/rank.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "common/clock.h"
#include "common/host_memory.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/model/kv_groups.h"
#include "engine/parallel/device_communicator.h"
#include "engine/step/scheduler.h"
#include "engine/step/step_channel.h"
#include "kernels/plugin/device_plugin.h"
#include "worker/ranks/group_terms.h"
#include "worker/ranks/mover_check.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {
namespace {

/// The result of a phase on one rank, as bytes for another rank.
struct Report {
  int32_t code = 0;
  char text[508] = {};
};

struct Parts {
  std::unique_ptr<kernels::Ops> ops;
  engine::DeviceLinks links;
  std::unique_ptr<KvMover> mover;
  std::unique_ptr<engine::Model> model;
};

absl::Status Load(const WorkerConfig& config, const engine::RankPlace& place, const engine::LoadProgress& progress,
                  Parts& out) {
  BATON_ASSIGN_OR_RETURN(out.model, engine::LoadModel(SourceOf(config, place), *out.ops, config.max_num_batched_tokens,
                                                      progress, out.links.links()));
  BATON_ASSIGN_OR_RETURN(out.mover, MakeMover(config, *out.ops, *out.model));
  return absl::OkStatus();
}

void LogIpc(const WorkerConfig& config, const KvMover& mover, const MoverRates& rates) {
  const KvOutbox outbox = mover.outbox();
  if (outbox.card.empty()) {
    LogInfo("worker: no KV by CUDA IPC: {}", !config.kv_cuda_ipc ? "--no-kv-cuda-ipc"
                                             : config.LentSlotBytes() == 0
                                                 ? "ranks are threads, each with a part of every slot"
                                                 : outbox.refused);
    return;
  }
  LogInfo(
      "worker: KV that goes by shm to or from another GPU of this machine goes by CUDA IPC: {} buffers of {} bytes to "
      "read from; {:.2f} GB/s from them into blocks of this GPU in the self-test",
      outbox.buffers, outbox.buffer_bytes, rates.lent_gigabytes_per_second);
}

}  // namespace

engine::RankPlace PlaceOf(const WorkerConfig& config, int rank) {
  return engine::RankPlace::Of(rank, config.tensor_parallel_size, config.pipeline_parallel_size,
                               config.reduction_width);
}

kernels::CpuOpsConfig OpsConfigOf(const WorkerConfig& config) {
  kernels::CpuOpsConfig out;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  out.threads =
      std::max(1, (config.threads > 0 ? config.threads : cores / config.local_workers) / config.local_ranks());
  if (config.dtype == "bfloat16") out.dtype = DType::kBF16;
  if (config.dtype == "float32") out.dtype = DType::kF32;
  out.kv_dtype = config.KvCacheDType();
  return out;
}

absl::StatusOr<std::unique_ptr<kernels::Ops>> MakeOps(const WorkerConfig& config, int rank) {
  if (!config.on_gpu()) return kernels::MakeCpuOps(OpsConfigOf(config));
  const std::string path = config.device_plugin.empty() ? kernels::DefaultCudaPlugin() : config.device_plugin;
  return kernels::LoadDeviceOps(path, {.number = config.CudaDeviceOf(rank),
                                       .kv_dtype = config.KvCacheDType(),
                                       .deterministic = config.deterministic,
                                       .one_shot_bytes = config.one_shot_sum_bytes});
}

absl::StatusOr<std::unique_ptr<KvMover>> MakeMover(const WorkerConfig& config, kernels::Ops& ops,
                                                   const engine::Model& model) {
  if (config.role == "both") return nullptr;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<KvMover> mover,
                         ops.MakeKvMover(static_cast<size_t>(config.LandingSlotBytes()), config.LentSlotBytes() > 0));
  if (mover == nullptr) return nullptr;
  const KvPlane& plane = model.kv_layout().groups.front().planes.front();
  const SteadyClock clock;
  BATON_ASSIGN_OR_RETURN(const MoverRates rates, CheckMover(ops, *mover, plane.dtype, plane.dim, clock));
  LogInfo(
      "worker: KV staged through host memory{}: the GPU {} pinned memory of {} bytes, a slot's; transports but "
      "ucx-rdma see the host's memory only; lists and buffers of {} bytes on the GPU; {:.2f} GB/s out of the GPU and "
      "{:.2f} into it "
      "in the self-test",
      mover->outbox().card.empty() ? "" : ", where it does not go by CUDA IPC",
      config.role == "prefill" ? "gathers into" : "scatters from", mover->staging().size(), ops.rooms().handoff,
      rates.gather_gigabytes_per_second, rates.scatter_gigabytes_per_second);
  LogIpc(config, *mover, rates);
  return mover;
}

engine::ModelSource SourceOf(const WorkerConfig& config, const engine::RankPlace& place) {
  engine::ModelSource source{
      .path = config.model, .dummy_weights = config.load_format == "dummy", .dummy_seed = config.seed};
  source.config_directory = config.hf_config_path;
  if (!config.hf_overrides.empty()) source.config_overrides.push_back(config.hf_overrides);
  if (!config.rope_scaling.empty())
    source.config_overrides.push_back(StrCat("{\"rope_scaling\": ", config.rope_scaling, "}"));
  if (config.rope_theta > 0) source.config_overrides.push_back(StrCat("{\"rope_theta\": ", config.rope_theta, "}"));
  source.block_size = config.block_size;
  source.place = place;
  source.context_tokens = config.max_model_len;
  source.max_sequences = config.max_num_seqs;
  source.recorded_rows = config.RecordedRows().value_or(std::vector<int32_t>());
  source.max_logit_rows = config.max_num_seqs + engine::SchedulerOptions().max_logit_rows;
  source.one_shot_sum_bytes = config.one_shot_sum_bytes;
  source.hands_over = config.role != "both";
  source.lent_slot_bytes = config.LentSlotBytes();
  if (const auto available = AvailableMemoryBytes(); available.has_value() && config.local_ranks() > 1) {
    const int64_t share = *available / config.local_ranks();  // they load at once
    (config.on_gpu() ? source.host_limit_bytes : source.memory_limit_bytes) = share;
  }
  return source;
}

std::string OfRank(int rank, std::string_view words) {
  return words.starts_with("rank ") ? std::string(words) : StrCat("rank ", rank, ": ", words);
}

absl::Status Agree(engine::Communicator* world, const absl::Status& mine) {
  if (world == nullptr) return mine;
  Report report{.code = mine.raw_code()};
  mine.message().copy(report.text, sizeof(report.text) - 1);
  std::vector<Report> all(static_cast<size_t>(world->size()));
  BATON_RETURN_IF_ERROR(world->AllGather(std::as_bytes(std::span(&report, 1)), std::as_writable_bytes(std::span(all))));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0) continue;
    if (static_cast<int>(rank) == world->rank()) return mine;
    const auto code = static_cast<absl::StatusCode>(all[rank].code);
    return absl::Status(code, StrCat("rank ", rank, ": ", all[rank].text));
  }
  return absl::OkStatus();
}

absl::Status JoinLinks(const WorkerConfig& config, int rank, const engine::RankLinks& links,
                       std::unique_ptr<kernels::Ops>& ops, engine::DeviceLinks& joined) {
  auto made = MakeOps(config, rank);
  BATON_RETURN_IF_ERROR(Agree(links.world, made.status()));
  ops = *std::move(made);
  auto over = engine::DeviceLinks::Join(*ops, links);
  BATON_RETURN_IF_ERROR(Agree(links.world, over.status()));
  joined = *std::move(over);
  return absl::OkStatus();
}

absl::Status ShareBlocks(engine::Communicator* world, std::vector<int32_t>& num_blocks) {
  if (world == nullptr) return absl::OkStatus();
  return world->Broadcast(0, std::as_writable_bytes(std::span(num_blocks)));
}

absl::StatusOr<std::vector<kernels::DeviceMemory>> ShareDeviceMemory(engine::Communicator* world,
                                                                     const kernels::Ops& ops) {
  const auto mine = ops.device_memory();
  if (!mine.has_value()) return std::vector<kernels::DeviceMemory>();
  std::vector<kernels::DeviceMemory> all(static_cast<size_t>(world != nullptr ? world->size() : 1), *mine);
  if (world == nullptr) return all;
  BATON_RETURN_IF_ERROR(world->AllGather(std::as_bytes(std::span(&*mine, 1)), std::as_writable_bytes(std::span(all))));
  return all;
}

absl::StatusOr<std::unique_ptr<engine::KvMemory>> MakeRankMemory(const engine::Model& model,
                                                                 const engine::RankPlace& place,
                                                                 const std::vector<int32_t>& num_blocks,
                                                                 kernels::Ops& ops, SharedMemory* given) {
  const engine::RankShape shape = engine::ShapeOf(model.config(), place);
  const KvLayout layout = engine::RankKvLayout(model.kv_layout(), shape);
  std::span<std::byte> memory;
  if (given != nullptr) {
    BATON_ASSIGN_OR_RETURN(memory, given->Map(engine::KvMemory::Bytes(layout, num_blocks)));
  }
  return engine::KvMemory::Create(layout, num_blocks, ops, shape.kv_heads.begin, memory);
}

KvSide SideOfRanks(const WorkerConfig& config, const engine::Model& model) {
  KvSide side{.layout = model.kv_layout(), .tensor_parallel_size = config.tensor_parallel_size};
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage) {
    const engine::RankPlace place = PlaceOf(config, stage * config.tensor_parallel_size);
    side.stage_layers.push_back(engine::ShapeOf(model.config(), place).layers.begin);
  }
  side.stage_layers.push_back(model.config().num_layers);
  return side;
}

absl::Status ShareInvitation(engine::Communicator* world, KvInvitation& invitation) {
  return world->Broadcast(0, std::as_writable_bytes(std::span(&invitation, 1)));
}

absl::Status RunRank(const WorkerConfig& config, int rank, const engine::RankLinks& links, RankKv kv,
                     const RankHooks& hooks) {
  const engine::RankPlace place = PlaceOf(config, rank);
  BATON_RETURN_IF_ERROR(AgreeOnTerms(links.world, TermsOf(config)));
  Parts parts;
  BATON_RETURN_IF_ERROR(JoinLinks(config, rank, links, parts.ops, parts.links));
  BATON_RETURN_IF_ERROR(Agree(links.world, Load(config, place, hooks.on_progress, parts)));
  BATON_RETURN_IF_ERROR(AgreeOnTerms(links.world, TermsOf(parts.model->config().digest, parts.ops->traits())));
  BATON_RETURN_IF_ERROR(ShareDeviceMemory(links.world, *parts.ops).status());
  std::vector<int32_t> num_blocks(parts.model->kv_layout().groups.size());
  BATON_RETURN_IF_ERROR(Agree(links.world, absl::OkStatus()));  // rank 0 may find no room for them
  BATON_RETURN_IF_ERROR(ShareBlocks(links.world, num_blocks));
  auto* shared = config.on_gpu() ? nullptr : std::get_if<SharedMemory>(&kv);
  auto memory = MakeRankMemory(*parts.model, place, num_blocks, *parts.ops, shared);
  if (memory.ok() && config.on_gpu()) hooks.on_device_kv({memory->get(), parts.mover.get()});
  BATON_RETURN_IF_ERROR(Agree(links.world, memory.status()));
  LogInfo("{}: ready, {:.2f} GiB of weights, {:.2f} GiB of KV", place.Name(),
          GiB(static_cast<int64_t>(parts.model->weight_bytes())), GiB((*memory)->bytes()));
  std::unique_ptr<RankCarrier> carrier;
  if (auto* own = std::get_if<OwnKv>(&kv); own != nullptr && config.ranks_carry_kv()) {
    KvInvitation invitation;
    BATON_RETURN_IF_ERROR(ShareInvitation(links.world, invitation));
    RankCarrier::Facts facts{config, rank, RankPoolViewOf(**memory, parts.mover.get()),
                             SideOfRanks(config, *parts.model), parts.model->config().digest};
    BATON_ASSIGN_OR_RETURN(carrier, RankCarrier::Start(std::move(facts), own->carrier, invitation, own->trust,
                                                       [&links](const absl::Status& why) { links.world->Abort(why); }));
  }
  hooks.on_ready();
  engine::StepChannel channel(*links.world);
  const absl::Status end = engine::FollowSteps(channel, *parts.model, **memory, *parts.ops);
  hooks.on_end(end);
  return end;
}

}  // namespace baton::worker
