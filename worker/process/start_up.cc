#include "worker/process/start_up.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/kv_digest.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/model/kv_groups.h"
#include "kernels/cpu/cpu_ops.h"
#include "text/tokenizer.h"
#include "worker/process/kv_budget.h"
#include "worker/process/numerics_id.h"
#include "worker/process/progress_line.h"
#include "worker/process/text_memory.h"
#include "worker/ranks/group_terms.h"
#include "worker/ranks/rank.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {
namespace {

// The model's base name: "SmolLM2-135M-Instruct.Q4_1" of a file, the directory's name of a directory.
std::string BaseName(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

// A step of `rows` sequences of one token through the whole model, on all ranks. `followed`: as a prefill worker's,
// which is not recorded.
absl::Status RunFirstTokens(LoadedModel& loaded, int32_t rows, bool followed = false) {
  const std::vector<int32_t> zeros(static_cast<size_t>(rows), 0);
  engine::StepBatch batch{.context = zeros, .followed = followed};
  std::function<void(int)> on_layer_kv;
  if (followed) on_layer_kv = [](int) {};
  for (int32_t r = 0; r < rows; ++r) {
    batch.row_start.push_back(r + 1);
    batch.logit_rows.push_back(r);
  }
  batch.block_tables.assign(loaded.model->kv_layout().groups.size(), zeros);
  if (loaded.channel) BATON_RETURN_IF_ERROR(loaded.channel->Publish(batch));
  const std::atomic<bool> cancel{false};
  absl::Status status =
      engine::RunRows(batch, {.ids = zeros}, *loaded.model, *loaded.memory, cancel, std::move(on_layer_kv)).status();
  if (!loaded.channel) return status;
  if (status.ok()) {
    loaded.ops->Sync();  // as the others do: the next step is told when all have ended this one
    status = loaded.model->LinksHealth();
  }
  if (!status.ok()) loaded.channel->Abort(status);
  loaded.channel->Done();
  return status;
}

// A step that was launched kernel by kernel instead of recorded costs speed only, so the worker goes on.
void LogRecorded(const std::vector<int32_t>& wanted, const LoadedModel& loaded) {
  const std::vector<int32_t>& rows = loaded.recorded_rows;
  LogInfo("worker: steps of decodes are recorded for {} numbers of sequences, up to {}", rows.size(),
          rows.empty() ? 0 : rows.back());
  if (rows.size() == wanted.size()) return;
  LogWarning(
      "worker: for {} of {} numbers of sequences steps of decodes are not recorded, and run slower: the record did not "
      "fit into the GPU's memory, of which {} bytes of {} are free (a lower --gpu-memory-utilization leaves more), or "
      "attention takes several launches",
      wanted.size() - rows.size(), wanted.size(), loaded.ops->device_memory()->free_bytes,
      loaded.ops->device_memory()->total_bytes);
}

// Pages are touched, primitives made; a device records its steps of decodes.
absl::Status WarmUp(const WorkerConfig& config, RankHost* ranks, LoadedModel& loaded) {
  const bool on_device = loaded.ops->device_memory().has_value();
  // A prefill worker follows its steps' layers, and records once it has become one that decodes.
  const bool follows = config.role == "prefill", records = on_device && !follows;
  const std::vector<int32_t> wanted =
      records ? config.RecordedRows().value_or(std::vector<int32_t>()) : std::vector<int32_t>();
  if (wanted.empty()) BATON_RETURN_IF_ERROR(RunFirstTokens(loaded, 1, follows));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int32_t rows = wanted[i];
    const auto replays = [&] { return loaded.ops->device_work().replays; };
    const int64_t before = replays();
    // With other ranks the first connects them, with a library it loads its kernels.
    for (int steps = loaded.channel || loaded.ops->traits().library_bytes > 0 ? 2 : 1; steps > 0; --steps) {
      if (ranks != nullptr) ranks->Note("warm-up", static_cast<double>(i) / static_cast<double>(wanted.size()));
      BATON_RETURN_IF_ERROR(RunFirstTokens(loaded, rows));
    }
    if (replays() > before) loaded.recorded_rows.push_back(rows);
  }
  if (!on_device) return absl::OkStatus();
  loaded.ops->Sync();
  LogRecorded(wanted, loaded);
  return absl::OkStatus();
}

absl::StatusOr<engine::BlockBudget> PlanKvHere(const WorkerConfig& config, const KvLayout& kept,
                                               const std::vector<kernels::DeviceMemory>& devices,
                                               const LoadedModel& loaded) {
  if (!devices.empty())
    return PlanKvOnDevices(config, devices, loaded.model->config(), loaded.model->kv_layout(), loaded.max_model_len);
  std::optional<int64_t> available = AvailableMemoryBytes();
  if (available) *available *= config.nnodes;  // the others are taken to have as much; who has less says so
  return PlanKv(config, kept, KvBytes(config, kept, loaded.max_model_len, available), loaded.max_model_len);
}

absl::Status MakeAllMemory(const WorkerConfig& config, RankHost* ranks, const std::vector<int32_t>& counts,
                           LoadedModel& loaded) {
  BATON_ASSIGN_OR_RETURN(loaded.memory, MakeRankMemory(*loaded.model, loaded.place, counts, *loaded.ops, nullptr));
  for (size_t i = 0; ranks != nullptr && !config.on_gpu() && i < ranks->kv().size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        loaded.others.emplace_back(),
        MakeRankMemory(*loaded.model, PlaceOf(config, static_cast<int>(i) + 1), counts, *loaded.ops, &ranks->kv()[i]));
  }
  return absl::OkStatus();
}

int64_t KvBytesOfAll(const WorkerConfig& config, const LoadedModel& loaded, const std::vector<int32_t>& counts) {
  int64_t bytes = 0;
  for (int rank = 0; rank < config.ranks(); ++rank) {
    const engine::RankShape shape = engine::ShapeOf(loaded.model->config(), PlaceOf(config, rank));
    bytes += engine::KvMemory::Bytes(engine::RankKvLayout(loaded.model->kv_layout(), shape), counts);
  }
  return bytes;
}

// Where ranks carry their own KV, rank 0 tells them what to do.
absl::Status OpenLines(const WorkerConfig& config, RankHost* ranks, LoadedModel& loaded) {
  loaded.side = config.ranks_carry_kv() ? SideOfRanks(config, *loaded.model) : SideOf(loaded.model->kv_layout());
  if (ranks == nullptr || !config.ranks_carry_kv()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(loaded.lines, KvLines::Open(ranks->host(), config.ranks(), ranks->trust()));
  KvInvitation invitation = loaded.lines->invitation();
  return ShareInvitation(ranks->links().world, invitation);
}

absl::Status AllocateKv(const WorkerConfig& config, RankHost* ranks, LoadedModel& loaded) {
  engine::Communicator* world = ranks != nullptr ? ranks->links().world : nullptr;
  const KvLayout kept = KeptLayout(loaded.model->config(), loaded.place, loaded.model->kv_layout());
  BATON_ASSIGN_OR_RETURN(const std::vector<kernels::DeviceMemory> devices, ShareDeviceMemory(world, *loaded.ops));
  absl::StatusOr<engine::BlockBudget> blocks = PlanKvHere(config, kept, devices, loaded);
  BATON_RETURN_IF_ERROR(Agree(world, blocks.status()));
  loaded.blocks = *std::move(blocks);
  std::vector<int32_t> counts = loaded.blocks.num_blocks;
  BATON_RETURN_IF_ERROR(ShareBlocks(world, counts));
  BATON_RETURN_IF_ERROR(Agree(world, MakeAllMemory(config, ranks, counts, loaded)));
  if (ranks != nullptr) loaded.device_kv = ranks->device_kv();
  BATON_RETURN_IF_ERROR(OpenLines(config, ranks, loaded));
  if (world != nullptr) loaded.channel = std::make_unique<engine::StepChannel>(*world);
  if (const auto memory = loaded.ops->device_memory())
    LogInfo("worker: {:.2f} of the GPU's {:.2f} GiB stay free", GiB(memory->free_bytes), GiB(memory->total_bytes));
  LogInfo("worker: bytes taken by KV of all ranks {}", KvBytesOfAll(config, loaded, counts));
  LogInfo("Available KV cache memory: {:.2f} GiB", GiB(loaded.blocks.bytes));
  LogInfo("KV cache size: {} tokens", loaded.blocks.tokens);
  LogInfo("Maximum concurrency for {} tokens per request: {:.2f}x", loaded.max_model_len,
          static_cast<double>(loaded.blocks.tokens) / loaded.max_model_len);
  return absl::OkStatus();
}

absl::Status LoadWeights(const WorkerConfig& config, StartUpProgress& progress, const engine::RankLinks& links,
                         RankHost* ranks, LoadedModel& loaded) {
  const SteadyClock clock;
  ProgressLine line(clock, StandardProgress());
  auto report = [&](std::string_view phase, double fraction) {
    progress.Set(phase, fraction);
    if (ranks != nullptr) ranks->Note(phase, fraction);
    line.Show(phase, fraction);
  };
  engine::ModelSource source = SourceOf(config, loaded.place);
  source.given_up = &progress.given_up();
  BATON_ASSIGN_OR_RETURN(loaded.model,
                         engine::LoadModel(source, *loaded.ops, config.max_num_batched_tokens, report, links));
  BATON_ASSIGN_OR_RETURN(loaded.mover, MakeMover(config, *loaded.ops, *loaded.model));
  const int64_t limit = loaded.model->config().max_position_embeddings;
  loaded.max_model_len = static_cast<int32_t>(config.max_model_len > 0 ? config.max_model_len : limit);
  return absl::OkStatus();
}

using TokenizerLoad = std::future<absl::StatusOr<std::unique_ptr<Tokenizer>>>;
using CompilerLoad = std::future<absl::StatusOr<std::unique_ptr<GrammarCompiler>>>;

// Runs beside the loading of the rest; of the tokenizer only the part that grammars see is kept.
CompilerLoad MakeGrammarCompiler(TokenizerLoad tokenizer, const engine::ModelConfig& model) {
  return std::async(
      std::launch::async,
      [load = std::move(tokenizer), vocab_size = model.vocab_size,
       eos = model.eos_token_ids]() mutable -> absl::StatusOr<std::unique_ptr<GrammarCompiler>> {
        BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, load.get());
        if (tokenizer->vocab_size() > vocab_size)
          return absl::InvalidArgumentError(StrCat("the tokenizer has ", tokenizer->vocab_size(), " tokens, the model ",
                                                   vocab_size, ": it is another model's"));
        // As the router chooses what ends an answer.
        return GrammarCompiler::Make(*tokenizer, tokenizer->eos_ids().empty() ? eos : tokenizer->eos_ids(), vocab_size);
      });
}

// A worker whose model has no tokenizer serves all the same, unless one was named.
absl::Status TakeGrammars(const WorkerConfig& config, absl::StatusOr<std::unique_ptr<GrammarCompiler>> compiler,
                          LoadedModel& loaded) {
  if (compiler.ok()) {
    loaded.grammars = *std::move(compiler);
    LogInfo("worker: bytes taken by what grammars keep of the tokenizer about {}",
            TextBytes(config, loaded.grammars->vocab_size()));
    return absl::OkStatus();
  }
  if (!config.tokenizer.empty())
    return absl::Status(compiler.status().code(),
                        StrCat("--tokenizer ", config.tokenizer, ": ", compiler.status().message()));
  LogWarning("worker: requests with structured outputs are refused: {}", View(compiler.status().message()));
  return absl::OkStatus();
}

// The figures are those of docs/gpu.md.
void PrintDeterminism(const WorkerConfig& config) {
  if (!config.on_gpu()) return;
  LogInfo("worker: --{}deterministic: an answer's bits {} depend on what runs beside it",
          config.deterministic ? "" : "no-", config.deterministic ? "do not" : "may");
  if (!config.deterministic) return;
  LogInfo(
      "worker: --deterministic costs, as measured on an H100: attention takes up to 5 % more time than with "
      "--no-deterministic (8 % over 128k tokens of one sequence); linear layers take none, and it takes no memory");
}

// Prints the ranks, and the cost of the way in which they sum.
void PrintRanks(const WorkerConfig& config) {
  if (config.ranks() > 1) {
    const bool processes = config.nnodes > 1 || config.distributed_executor_backend == "mp";
    LogInfo("worker: {} ranks as {}{}: {} share each layer, {} stages of layers; {} threads each", config.ranks(),
            processes ? "processes" : "threads",
            config.nnodes > 1 ? StrCat(" on ", config.nnodes, " machines") : std::string(), config.tensor_parallel_size,
            config.pipeline_parallel_size, OpsConfigOf(config).threads);
  }
  const int leaves = PlaceOf(config, 0).leaves();
  if (config.reduction_width > 1) {
    LogInfo("worker: reduction width {}: each layer's two sums are {} products and {} additions on every rank",
            config.reduction_width, leaves, leaves - 1);
  }
  if (config.reduction_width < config.tensor_parallel_size) {
    LogInfo(
        "worker: --reduction-width {} < --tensor-parallel-size {}: answers differ in their last bits from those "
        "at another tensor parallel size",
        config.reduction_width, config.tensor_parallel_size);
  }
}

}  // namespace

std::vector<const engine::KvMemory*> LoadedModel::AllMemory() const {
  std::vector<const engine::KvMemory*> all = {memory.get()};
  for (const auto& other : others) all.push_back(other.get());
  for (const DeviceKv& other : device_kv) all.push_back(other.memory);
  return all;
}

std::vector<KvMover*> LoadedModel::AllMovers() const {
  if (mover == nullptr) return {};
  std::vector<KvMover*> all = {mover.get()};
  for (const DeviceKv& other : device_kv) all.push_back(other.mover);
  return all;
}

KvPoolView LoadedModel::PoolHere() const {
  return lines != nullptr ? RankPoolViewOf(*memory, mover.get()) : PoolViewOf(AllMemory(), AllMovers());
}

void StartUpProgress::Set(std::string_view phase, double fraction) {
  std::lock_guard lock(mutex_);
  view_ = {std::string(phase), fraction};
}

StartUpProgress::View StartUpProgress::Get() const {
  std::lock_guard lock(mutex_);
  return view_;
}

absl::StatusOr<LoadedModel> StartUp(const WorkerConfig& config, StartUpProgress& progress, RankHost* ranks) {
  const SteadyClock clock;
  TimePoint phase_start = clock.Now();
  auto done = [&](std::string_view phase) {
    LogInfo("worker: {} took {:.2f} s", phase, Seconds(clock.Now() - phase_start));
    phase_start = clock.Now();
  };
  const engine::RankLinks links = ranks != nullptr ? ranks->links() : engine::RankLinks();
  TokenizerLoad tokenizer;
  if (!config.skip_tokenizer_init)
    tokenizer =
        std::async(std::launch::async, &Tokenizer::OfModel, config.tokenizer.empty() ? config.model : config.tokenizer);
  LoadedModel loaded;
  loaded.place = PlaceOf(config, 0);
  loaded.name = config.served_model_name.empty() ? BaseName(config.model) : config.served_model_name.front();
  BATON_RETURN_IF_ERROR(AgreeOnTerms(links.world, TermsOf(config)));
  BATON_RETURN_IF_ERROR(JoinLinks(config, 0, links, loaded.ops, loaded.links));
  if (!loaded.links.about().empty()) LogInfo("worker: sums over GPUs {}", loaded.links.about());
  const kernels::OpsTraits& traits = loaded.ops->traits();
  LogInfo("worker: {} on {} threads, ISA {}, compute {}, KV {}", loaded.name, traits.threads, traits.isa,
          DTypeName(traits.compute), DTypeName(traits.kv));
  PrintRanks(config);
  PrintDeterminism(config);
  BATON_RETURN_IF_ERROR(Agree(links.world, LoadWeights(config, progress, loaded.links.links(), ranks, loaded)));
  BATON_RETURN_IF_ERROR(AgreeOnTerms(links.world, TermsOf(loaded.model->config().digest, traits)));
  if (const std::string about = loaded.ops->about(); !about.empty()) LogInfo("worker: dense layers: {}", about);
  LogInfo("worker: weights take {:.2f} GiB", GiB(static_cast<int64_t>(loaded.model->weight_bytes())));
  done("loading the model");
  CompilerLoad grammars;
  if (tokenizer.valid()) grammars = MakeGrammarCompiler(std::move(tokenizer), loaded.model->config());
  progress.Set("kv-allocate", 0);
  BATON_RETURN_IF_ERROR(AllocateKv(config, ranks, loaded));
  done("allocating KV");
  progress.Set("warm-up", 0);
  BATON_RETURN_IF_ERROR(WarmUp(config, ranks, loaded));
  if (ranks != nullptr) ranks->Started(config.on_gpu() ? loaded.channel->running() : nullptr);
  done("warm-up");
  if (grammars.valid()) BATON_RETURN_IF_ERROR(TakeGrammars(config, grammars.get(), loaded));
  if (!kMakesKvDigests)
    LogWarning("worker: this build has no KV digests: it is for measuring what they cost, and would read damaged KV");
  loaded.numerics_id = NumericsIdOf(loaded.model->config().digest, traits, loaded.place).id;
  return loaded;
}

}  // namespace baton::worker
