#include "bench/gpu/engine_handoff.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "bench/gpu/run_each.h"
#include "common/kv_mover.h"
#include "common/status.h"

namespace baton::bench {
namespace {

constexpr int kBuffers = 16;         ///< slots under way at once; those of an outbox
constexpr size_t kMostMoves = 4096;  ///< of a call
constexpr int kWays = 2;             ///< by CUDA IPC, and staged

/// One end of a line between the two processes. False: the other one is gone.
class Line {
 public:
  explicit Line(int descriptor) : descriptor_(descriptor) {}
  ~Line() { close(descriptor_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  template <class Message>
  bool Say(const Message& message) const {
    return send(descriptor_, &message, sizeof(message), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message));
  }
  template <class Message>
  bool Hear(Message& message) const {
    return recv(descriptor_, &message, sizeof(message), MSG_WAITALL) == static_cast<ssize_t>(sizeof(message));
  }

 private:
  const int descriptor_;
};

/// What a decode process opens.
struct LentCard {
  char bytes[512] = {};
  size_t size = 0, buffer_bytes = 0;
};
/// A slot of a layer's keys and values, of some blocks of a prompt; or that all has come.
struct FilledSlot {
  int32_t layer = -1;  ///< −1: all has come, `tokens` are in the blocks
  int32_t first_block = 0, blocks = 0, tokens = 0, buffer = 0;
  bool staged = false;
  int64_t bytes = 0;
  uint64_t digest = 0;
};
struct Placed {
  bool right = true;
  int32_t token = -1;  ///< drawn behind the prompt, once all has come
  int64_t at_ns = 0;   ///< when it was placed, by the clock that both read
};

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

const kernels::KvLayerView* LayerOf(const Engine& on, int layer) {
  for (const engine::KvGroupView& group : on.memory->groups())
    for (const kernels::KvLayerView& view : group.layers)
      if (view.layer == static_cast<uint32_t>(layer)) return &view;
  return nullptr;
}
int64_t BlockBytes(const kernels::KvPlaneView& plane) {
  return int64_t{plane.tokens_per_block} * plane.heads * plane.dim * static_cast<int64_t>(DTypeBytes(plane.dtype));
}

/// Blocks [first, first + count) of a layer's keys, then of its values, packed from `staged` on. `table`: of the
/// prompt, which has `tokens`.
std::vector<KvMove> MovesOf(const kernels::KvLayerView& layer, std::span<const int32_t> table, const FilledSlot& slot,
                            int64_t staged) {
  std::vector<KvMove> moves;
  uint32_t number = 0;
  for (const kernels::KvPlaneView* plane : {&layer.k, &layer.v}) {
    for (int32_t b = slot.first_block; b < slot.first_block + slot.blocks; ++b) {
      const int64_t block = table[static_cast<size_t>(b)];
      const int32_t first = b * plane->tokens_per_block;
      KvMove move;
      move.cache = static_cast<char*>(plane->base) + block * plane->block_stride_bytes;
      move.token_stride = BlockBytes(*plane) / plane->tokens_per_block;
      move.staged = staged;
      move.digests = plane->digests + block * plane->digest_block_stride;
      move.digest_stride = plane->heads;
      move.layer = layer.layer, move.plane = number, move.first_head = layer.first_head;
      move.first_token = static_cast<uint32_t>(first);
      move.tokens = std::min(plane->tokens_per_block, slot.tokens - first);
      move.heads = plane->heads, move.dim = plane->dim;
      move.cached = move.packed = plane->dtype;
      move.scale = plane->scale;
      moves.push_back(move);
      staged += BlockBytes(*plane);
    }
    ++number;
  }
  return moves;
}

/// Memory that both processes have: the landing slots of KV that is staged.
struct Slots {
  explicit Slots(size_t bytes_each)
      : each(bytes_each),
        memory(mmap(nullptr, kBuffers * bytes_each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  std::span<std::byte> all() const { return {static_cast<std::byte*>(memory), kBuffers * each}; }
  std::span<std::byte> Of(int buffer) const { return all().subspan(static_cast<size_t>(buffer) * each, each); }
  const size_t each;
  void* const memory;
};

struct Sides {
  const EngineOptions& options;
  const EnginePlan& plan;
  const Slots& slots;
  const Line& line;
};

/// Gathers layers as their KV comes, on a thread of its own, and tells of each slot.
class SlotSender {
 public:
  SlotSender(const Engine& on, KvMover& mover, const Sides& sides, std::span<const int32_t> table, int tokens,
             bool staged)
      : on_(on), mover_(mover), sides_(sides), table_(table), tokens_(tokens), staged_(staged), thread_([this] {
          Run();
        }) {}
  ~SlotSender() {
    if (thread_.joinable()) {
      Layer(-1);
      thread_.join();
    }
  }
  /// Its KV is there. Any thread.
  void Layer(int layer) {
    std::lock_guard lock(mutex_);
    layers_.push_back(layer);
    more_.notify_one();
  }
  /// When all layers have been placed there, and what was drawn behind them.
  absl::StatusOr<Placed> Finish() {
    Layer(-1);
    thread_.join();
    return result_;
  }
  int64_t bytes() const { return bytes_; }

 private:
  void Run() {
    for (;;) {
      int layer = 0;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return !layers_.empty(); });
        layer = layers_.front();
        layers_.pop_front();
      }
      if (layer < 0) break;
      if (result_.ok()) Note(Send(layer));
    }
    while (result_.ok() && under_way_ > 0) Note(Hear());
    if (!result_.ok()) return;
    FilledSlot last{.tokens = tokens_};
    Placed placed;
    if (!sides_.line.Say(last) || !sides_.line.Hear(placed)) return Note(Gone());
    result_ = placed;
  }
  void Note(const absl::Status& status) {
    if (!status.ok()) result_ = status;
  }
  static absl::Status Gone() { return absl::UnavailableError("the decode process is gone"); }
  absl::Status Hear() {
    Placed placed;
    if (!sides_.line.Hear(placed)) return Gone();
    --under_way_;
    return placed.right ? absl::OkStatus() : absl::DataLossError("a slot arrived with another digest");
  }
  absl::Status Send(int layer) {
    const kernels::KvLayerView& view = *LayerOf(on_, layer);
    const int64_t pair = BlockBytes(view.k) + BlockBytes(view.v);
    const auto fit = static_cast<int32_t>(
        std::min<int64_t>(static_cast<int64_t>(sides_.slots.each) / pair, static_cast<int64_t>(kMostMoves / 2)));
    const int32_t blocks = (tokens_ - 1) / view.k.tokens_per_block + 1;
    for (int32_t first = 0; first < blocks; first += fit) {
      if (under_way_ == kBuffers) BATON_RETURN_IF_ERROR(Hear());
      FilledSlot slot{.layer = layer,
                      .first_block = first,
                      .blocks = std::min(fit, blocks - first),
                      .tokens = tokens_,
                      .buffer = next_++ % kBuffers,
                      .staged = staged_};
      slot.bytes = slot.blocks * pair;
      const int64_t at = staged_ ? 0 : slot.buffer * static_cast<int64_t>(sides_.slots.each);
      const std::vector<KvMove> moves = MovesOf(view, table_, slot, at);
      std::vector<KvMoved> moved(1);
      BATON_RETURN_IF_ERROR(mover_.Gather(moves, moved, staged_ ? KvPacked::kStaging : KvPacked::kOutbox));
      if (moved[0].unkept != 0) return absl::DataLossError(StrCat("layer ", layer, " was gathered too early"));
      slot.digest = moved[0].digest;
      if (staged_)
        std::memcpy(sides_.slots.Of(slot.buffer).data(), mover_.staging().data(), static_cast<size_t>(slot.bytes));
      ++under_way_;
      bytes_ += slot.bytes;
      if (!sides_.line.Say(slot)) return Gone();
    }
    return absl::OkStatus();
  }

  const Engine& on_;
  KvMover& mover_;
  const Sides& sides_;
  const std::span<const int32_t> table_;
  const int tokens_;
  const bool staged_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<int> layers_;  ///< guarded by mutex_
  int under_way_ = 0, next_ = 0;
  int64_t bytes_ = 0;
  absl::StatusOr<Placed> result_ = Placed{};
  std::thread thread_;  ///< last: it uses the others
};

/// A prefill process's measurements.
class Prefill {
 public:
  Prefill(const Sides& sides, Engine& on, KvMover& mover, nlohmann::json& result)
      : sides_(sides), on_(on), mover_(mover), result_(result) {}

  absl::Status All(bool ipc) {
    for (const int tokens : sides_.plan.prompts) {
      BATON_ASSIGN_OR_RETURN(const double alone_us, Alone(tokens));
      for (int way = ipc ? 0 : 1; way < kWays; ++way) BATON_RETURN_IF_ERROR(Measure(tokens, way == 1, alone_us));
    }
    return absl::OkStatus();
  }
  bool wrong() const { return wrong_; }

 private:
  int Runs() const { return sides_.options.tiny ? 1 : 5; }
  static double Median(std::vector<double> of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
  }
  absl::StatusOr<double> Alone(int tokens) {
    std::vector<double> times;
    for (int i = 0; i < Runs(); ++i) {
      Sequences one(on_, 1, (tokens - 1) / kUnitTokens + 2);
      const auto begin = Clock::now();
      BATON_RETURN_IF_ERROR(one.Give(tokens, 0, false));
      one.Take();
      times.push_back(1e6 * SecondsSince(begin));
    }
    return Median(times);
  }
  absl::Status Measure(int tokens, bool staged, double alone_us) {
    std::vector<double> times, moves;
    int64_t bytes = 0;
    bool right = true;
    for (int i = 0; i < Runs(); ++i) {
      Sequences one(on_, 1, (tokens - 1) / kUnitTokens + 2);
      int64_t begin = NowNs();
      Placed placed;
      {
        SlotSender sender(on_, mover_, sides_, one.table(), tokens, staged);
        BATON_RETURN_IF_ERROR(one.Give(
            tokens, 0, false, [&](int layer) { on_.ops->WhenDone([&sender, layer] { sender.Layer(layer); }); }));
        one.Take();
        BATON_ASSIGN_OR_RETURN(placed, sender.Finish());
      }
      times.push_back(1e-3 * static_cast<double>(placed.at_ns - begin));
      begin = NowNs();
      {
        SlotSender sender(on_, mover_, sides_, one.table(), tokens, staged);
        for (int layer = 0; layer < on_.model->config().num_layers; ++layer) sender.Layer(layer);
        BATON_ASSIGN_OR_RETURN(placed, sender.Finish());
        bytes = sender.bytes();
      }
      moves.push_back(static_cast<double>(placed.at_ns - begin));
      BATON_RETURN_IF_ERROR(one.Give(1, tokens, false));
      right = right && one.Take() == placed.token;
    }
    Add(tokens, staged ? "staged" : "CUDA IPC", Median(times), alone_us, static_cast<double>(bytes) / Median(moves),
        right);
    return absl::OkStatus();
  }
  void Add(int tokens, const char* way, double us, double alone_us, double gigabytes_per_s, bool right) {
    wrong_ = wrong_ || !right;
    std::printf("handoff 1 x %-6d %-8s %12.1f us, %12.1f alone (%+.1f %%), KV moves at %.2f GB/s%s\n", tokens, way, us,
                alone_us, 100 * (us / alone_us - 1), gigabytes_per_s, right ? "" : "  ANOTHER TOKEN");
    std::fflush(stdout);
    result_["rows"].push_back({{"what", StrCat("handoff, ", way)},
                               {"batch", 1},
                               {"context", tokens},
                               {"us", us},
                               {"alone_us", alone_us},
                               {"floor_us", alone_us},
                               {"of_roof", alone_us / us},
                               {"tokens_per_s", 1e6 * tokens / us},
                               {"gigabytes_per_s", gigabytes_per_s},
                               {"right", right}});
    if (!sides_.options.json.empty()) std::ofstream(sides_.options.json) << result_.dump(1) << "\n";
  }

  const Sides& sides_;
  Engine& on_;
  KvMover& mover_;
  nlohmann::json& result_;
  bool wrong_ = false;
};

absl::StatusOr<bool> RunPrefill(const Sides& sides) {
  BATON_ASSIGN_OR_RETURN(Engine on, LoadEngine(sides.options, sides.plan));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<KvMover> mover, on.ops->MakeKvMover(sides.slots.each, true));
  const KvOutbox outbox = mover->outbox();
  LentCard card{.size = outbox.card.size(), .buffer_bytes = outbox.buffer_bytes};
  if (card.size > sizeof(card.bytes)) return absl::InternalError("a card that is too long");
  outbox.card.copy(card.bytes, sizeof(card.bytes));
  Placed opened;
  if (!sides.line.Say(card) || !sides.line.Hear(opened)) return absl::UnavailableError("the decode process is gone");
  if (!opened.right)
    std::printf("handoff: no CUDA IPC between the two processes%s%s\n", outbox.refused.empty() ? "" : ": ",
                outbox.refused.c_str());
  nlohmann::json result = {
      {"model", sides.options.model},   {"kv", sides.options.kv},   {"deterministic", sides.options.deterministic},
      {"device", on.ops->traits().isa}, {"cuda_ipc", opened.right}, {"rows", nlohmann::json::array()}};
  Prefill prefill(sides, on, *mover, result);
  BATON_RETURN_IF_ERROR(prefill.All(opened.right));
  return !prefill.wrong();
}

/// Places what it is told of until the prefill process ends.
absl::StatusOr<bool> RunDecode(const Sides& sides) {
  BATON_ASSIGN_OR_RETURN(Engine on, LoadEngine(sides.options, sides.plan));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<KvMover> mover, on.ops->MakeKvMover(sides.slots.each, true));
  const auto pinned = mover->Pin(sides.slots.all());
  if (!pinned.ok()) std::printf("handoff: slots are not pinned: %s\n", std::string(pinned.status().message()).c_str());
  LentCard card;
  if (!sides.line.Hear(card)) return absl::UnavailableError("the prefill process is gone");
  const auto outbox = mover->Open(std::string_view(card.bytes, card.size));
  if (!outbox.ok()) std::printf("handoff: %s\n", std::string(outbox.status().message()).c_str());
  if (!sides.line.Say(Placed{.right = outbox.ok()})) return absl::UnavailableError("the prefill process is gone");
  const Sequences longest(on, 1, (sides.plan.prompts.back() - 1) / kUnitTokens + 2);
  FilledSlot slot;
  int64_t last_ns = 0;
  while (sides.line.Hear(slot)) {
    Placed placed;
    if (slot.layer < 0) {
      Sequences one(on, 1, (slot.tokens - 1) / kUnitTokens + 2);
      BATON_RETURN_IF_ERROR(one.Give(1, slot.tokens, false));
      placed = {.token = one.Take(), .at_ns = last_ns};
    } else {
      const std::span<std::byte> bytes = sides.slots.Of(slot.buffer).first(static_cast<size_t>(slot.bytes));
      KvPacked from = KvPacked::kInbox;
      if (!slot.staged)
        BATON_RETURN_IF_ERROR(
            mover->Fetch(**outbox, slot.buffer * static_cast<int64_t>(sides.slots.each), 0, slot.bytes));
      else if (pinned.ok())
        mover->FetchPinned(bytes, 0);
      else
        std::ranges::copy(bytes, mover->staging().begin()), from = KvPacked::kStaging;
      std::vector<KvMoved> moved(1);
      BATON_RETURN_IF_ERROR(mover->Scatter(MovesOf(*LayerOf(on, slot.layer), longest.table(), slot, 0), moved, from));
      placed.right = moved[0].digest == slot.digest;
      last_ns = NowNs();
    }
    if (!sides.line.Say(placed)) break;
  }
  return true;
}

/// In a process of its own: ends it.
[[noreturn]] void EndAs(const char* role, const absl::StatusOr<bool>& right) {
  if (!right.ok()) std::fprintf(stderr, "gpu_engine: %s: %s\n", role, right.status().ToString().c_str());
  std::fflush(nullptr);
  _exit(right.ok() && *right ? kAllRight : kSomethingWrong);
}

}  // namespace

int RunHandoff(const EngineOptions& options) {
  if (SaysThereIsNoDevice("gpu_engine")) return kNoDevice;
  EnginePlan plan(options.tiny);
  plan.batches = plan.far_batches = {1};
  const Slots slots(options.tiny ? size_t{16} << 10 : size_t{4} << 20);
  int ends[2];
  if (slots.memory == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
    return std::perror("gpu_engine: handoff"), kSomethingWrong;
  pid_t roles[2];
  for (int role = 0; role < 2; ++role) {
    roles[role] = fork();
    if (roles[role] < 0) return std::perror("gpu_engine: fork"), kSomethingWrong;
    if (roles[role] > 0) continue;
    close(ends[1 - role]);
    const Line line(ends[role]);
    const Sides sides{options, plan, slots, line};
    if (role == 0) EndAs("prefill", RunPrefill(sides));
    EndAs("decode", RunDecode(sides));
  }
  close(ends[0]), close(ends[1]);
  int worst = kAllRight;
  for (const pid_t role : roles) {
    int status = 0;
    waitpid(role, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != kAllRight) worst = kSomethingWrong;
  }
  return worst;
}

}  // namespace baton::bench
