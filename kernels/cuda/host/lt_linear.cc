#include "kernels/cuda/host/lt_linear.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/device_failure.h"
#include "common/str_cat.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {
namespace {

using gpu::kLtSuccess;

constexpr uint32_t kLeastAlignment = 16;            ///< of every row: k is a multiple of 8
constexpr size_t kMostPlans = 4096;                 ///< one for each number of rows that steps have had
constexpr int64_t kColdBytes = int64_t{160} << 20;  ///< of weights in turn: more than a cache keeps
constexpr int64_t kMostOutBytes = int64_t{256} << 20;
constexpr double kClearly = 0.97;  ///< of the own time: less is no noise
constexpr int kTimedRuns = 8;
constexpr size_t kPattern = 1 << 19;  ///< halves that are made and copied again and again

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t ElementBytes(bool wide) { return wide ? 4 : 2; }
int64_t ElementBytes(LtNumbers numbers) { return numbers == LtNumbers::kBf16 ? 2 : 1; }
int64_t InWhole(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
bool StartsAligned(const void* p, int64_t stride_bytes) {
  return reinterpret_cast<size_t>(p) % kLeastAlignment == 0 && stride_bytes % kLeastAlignment == 0;
}
bool StartsAligned(const DenseProduct& p) {
  const int64_t bytes = ElementBytes(p.numbers);
  return StartsAligned(p.x, p.x_stride * bytes) && StartsAligned(p.w, p.w_stride * bytes) &&
         StartsAligned(p.out, p.out_stride * ElementBytes(p.wide)) && StartsAligned(p.bias, 0) &&
         StartsAligned(p.x_scales, 0) && StartsAligned(p.w_scales, 0);
}
// Scales of 128 inputs go by fours of rows and of outputs.
bool Divides(const DenseProduct& p) { return p.numbers != LtNumbers::kBlockScales || (p.m % 4 == 0 && p.n % 4 == 0); }

/// How the scales of w and of x lie there.
std::pair<int32_t, int32_t> ScaleModes(LtNumbers numbers) {
  if (numbers == LtNumbers::kBlockScales) return {gpu::kLtScaleOfBlock, gpu::kLtScaleOf128};
  return {gpu::kLtScaleOfColumn, gpu::kLtScaleOfColumn};
}

}  // namespace

/// Of one problem: column-major, so outᵀ [n, m] = w [n, k] · xᵀ [k, m].
struct LtLinear::Plan {
  explicit Plan(const gpu::CublasLtApi& calls) : api(calls) {}
  ~Plan() {
    if (operation != nullptr) api.destroy_operation(operation);
    for (gpu::LtLayout* layout : {w, x, out})
      if (layout != nullptr) api.destroy_layout(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const gpu::CublasLtApi& api;
  gpu::LtOperation* operation = nullptr;
  gpu::LtLayout *w = nullptr, *x = nullptr, *out = nullptr;
  gpu::LtAlgorithm algorithm;
};

LtLinear::LtLinear(const gpu::CublasLtApi& api, gpu::Stream& stream, gpu::LtHandle* handle)
    : api_(api), stream_(stream), handle_(handle), workspace_(stream) {}

LtLinear::~LtLinear() {
  stream_.Synchronize();
  plans_.clear();
  api_.destroy(handle_);
}

absl::StatusOr<std::unique_ptr<LtLinear>> LtLinear::Make(const gpu::CublasLtApi& api, gpu::Stream& stream) {
  stream.Bind();
  gpu::LtHandle* handle = nullptr;
  if (const int result = api.create(&handle); result != kLtSuccess)
    return absl::UnavailableError(StrCat("cuBLASLt: ", api.error_text(result)));
  return std::unique_ptr<LtLinear>(new LtLinear(api, stream, handle));
}

absl::Status LtLinear::Reserve() {
  return workspace_.Reserve(static_cast<size_t>(kernels::kLibraryBytes), "products by cuBLASLt");
}

// They are read when a product is asked for.
int LtLinear::SetPointers(const DenseProduct& p, gpu::LtOperation* operation) const {
  int result = kLtSuccess;
  const auto set = [&](int attribute, const void* pointer) {
    if (result == kLtSuccess) result = api_.set_operation(operation, attribute, &pointer, sizeof(pointer));
  };
  if (p.bias != nullptr) set(gpu::kLtBiasPointer, p.bias);
  if (p.numbers != LtNumbers::kBf16) {
    set(gpu::kLtScalesOfA, p.w_scales);
    set(gpu::kLtScalesOfB, p.x_scales);
  }
  return result;
}

LtLinear::Kind LtLinear::KindOf(const DenseProduct& p) {
  return {{p.n, p.k, p.bias != nullptr, p.numbers}, p.wide, p.adds};
}

bool LtLinear::Knows(LtNumbers numbers) const {
  return numbers <= LtNumbers::kOneScale || version() >= gpu::kLtOwnScales;
}

// Null: the library has no algorithm.
std::unique_ptr<LtLinear::Plan> LtLinear::MakePlan(const DenseProduct& p) const {
  auto plan = std::make_unique<Plan>(api_);
  int result = kLtSuccess;
  const auto call = [&](auto function, auto... arguments) {
    if (result == kLtSuccess) result = function(arguments...);
  };
  const auto set = [&](auto function, auto* object, int attribute, auto value) {
    if (result == kLtSuccess) result = function(object, attribute, &value, sizeof(value));
  };
  const bool e4m3 = p.numbers != LtNumbers::kBf16;
  const int out_type = p.wide ? gpu::kLtF32 : gpu::kLtBf16, type = e4m3 ? gpu::kLtE4m3 : gpu::kLtBf16;
  const auto m = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
  call(api_.create_operation, &plan->operation, gpu::kLtComputeF32, gpu::kLtF32);
  set(api_.set_operation, plan->operation, gpu::kLtTransposeA, gpu::kLtTransposed);
  set(api_.set_operation, plan->operation, gpu::kLtTransposeB, gpu::kLtAsItIs);
  if (p.bias != nullptr) {
    set(api_.set_operation, plan->operation, gpu::kLtEpilogue, gpu::kLtAddsBias);
    set(api_.set_operation, plan->operation, gpu::kLtBiasType, int32_t{e4m3 ? gpu::kLtBf16 : out_type});
  }
  if (p.numbers > LtNumbers::kOneScale) {
    const auto [of_w, of_x] = ScaleModes(p.numbers);
    set(api_.set_operation, plan->operation, gpu::kLtScaleModeA, of_w);
    set(api_.set_operation, plan->operation, gpu::kLtScaleModeB, of_x);
  }
  if (result == kLtSuccess) result = SetPointers(p, plan->operation);
  call(api_.create_layout, &plan->w, type, k, n, p.w_stride);
  call(api_.create_layout, &plan->x, type, k, m, p.x_stride);
  call(api_.create_layout, &plan->out, out_type, n, m, p.out_stride);
  gpu::LtPreference* preference = nullptr;
  call(api_.create_preference, &preference);
  set(api_.set_preference, preference, gpu::kLtMostWorkspaceBytes, static_cast<uint64_t>(workspace_.bytes()));
  for (const int matrix : {gpu::kLtAlignmentA, gpu::kLtAlignmentB, gpu::kLtAlignmentC, gpu::kLtAlignmentD})
    set(api_.set_preference, preference, matrix, kLeastAlignment);
  gpu::LtProposal proposal;
  int count = 0;
  call(api_.propose, handle_, plan->operation, plan->w, plan->x, plan->out, plan->out, preference, 1, &proposal,
       &count);
  if (preference != nullptr) api_.destroy_preference(preference);
  if (result != kLtSuccess || count < 1 || proposal.state != kLtSuccess ||
      static_cast<int64_t>(proposal.workspace_bytes) > workspace_.bytes())
    return nullptr;
  plan->algorithm = proposal.algorithm;
  return plan;
}

const LtLinear::Plan* LtLinear::PlanOf(const DenseProduct& p) {
  const Problem problem{KindOf(p), p.m, p.x_stride, p.w_stride, p.out_stride};
  auto found = plans_.find(problem);
  if (found == plans_.end()) {
    if (plans_.size() >= kMostPlans) plans_.clear();  // the host's alone: no work that is enqueued reads them
    stream_.Bind();
    found = plans_.emplace(problem, MakePlan(p)).first;
  }
  return found->second.get();
}

bool LtLinear::Multiply(const DenseProduct& p) {
  const Plan* const plan = StartsAligned(p) ? PlanOf(p) : nullptr;
  if (plan == nullptr || SetPointers(p, plan->operation) != kLtSuccess) return false;
  stream_.Bind();
  const float alpha = 1, beta = p.adds ? 1 : 0;
#if defined(__CUDACC__)
  void* const stream = stream_.handle();
#else
  void* const stream = &stream_;
#endif
  const int result = api_.multiply(handle_, plan->operation, &alpha, p.w, plan->w, p.x, plan->x, &beta, p.out,
                                   plan->out, p.out, plan->out, &plan->algorithm, workspace_.Room<char>(0),
                                   static_cast<size_t>(workspace_.bytes()), stream);
  if (result == gpu::kLtInvalidValue || result == gpu::kLtNotSupported) return false;  // told before anything begins
  if (result != kLtSuccess) EndForDevice(StrCat("cuBLASLt: ", api_.error_text(result)));
  stream_.CountLaunch();
  return true;
}

bool LtLinear::Wins(const DenseProduct& p) const {
  const auto kind = faster_.find(KindOf(p));
  if (kind == faster_.end() || !Divides(p)) return false;
  const auto rows = kind->second.lower_bound(p.m);
  return rows != kind->second.end() && rows->second;
}

bool LtLinear::Run(const DenseProduct& p) { return Wins(p) && Multiply(p); }

void LtLinear::MeasureKind(const DenseProduct& like, int copies, std::span<const int> rows, const Own& own,
                           const Timer& timer) {
  const int64_t weight_bytes = like.n * like.w_stride * ElementBytes(like.numbers);
  for (const int m : rows) {
    if (m * like.out_stride * ElementBytes(like.wide) > kMostOutBytes) break;
    DenseProduct product = like;
    product.m = m;
    if (!Divides(product)) continue;
    const auto turn = [&](int i) {
      product.w = static_cast<const char*>(like.w) + i % copies * weight_bytes;
      return product;
    };
    bool works = Multiply(turn(0));
    const double library = !works ? -1 : timer(product, true, [&](int i) { works = Multiply(turn(i)) && works; });
    const double mine = library < 0 ? -1 : timer(product, false, [&](int i) { own(turn(i)); });
    const bool wins = works && library >= 0 && mine >= 0 && library < kClearly * mine;
    faster_[KindOf(like)][m] = wins;
    ++measured_;
    if (!wins) continue;
    ++taken_;
    own_seconds_ += mine;
    won_seconds_ += library;
  }
}

void LtLinear::Measure(std::span<const LtWeight> weights, std::span<const int> rows, const Own& own,
                       const Timer& timer) {
  const double begin = Now();
  stream_.Bind();
  for (const LtWeight& weight : weights) {
    if (!Knows(weight.numbers))
      ++not_known_;
    else if (!MeasureWeight(weight, rows, own, timer))
      ++without_room_;
    EndIfDeviceFailed(stream_.Synchronize());
  }
  seconds_ += Now() - begin;
}

// False: there is no memory for it.
bool LtLinear::MeasureWeight(const LtWeight& weight, std::span<const int> rows, const Own& own, const Timer& timer) {
  const bool e4m3 = weight.numbers != LtNumbers::kBf16;
  const int64_t n = weight.n, k = weight.k, bytes = ElementBytes(weight.numbers),
                stride = InWhole(k, e4m3 ? kernels::kRoundedShape.columns : kernels::kDeviceShape.columns),
                padded = e4m3 ? n : InWhole(n, kernels::kDeviceShape.rows), weight_bytes = padded * stride * bytes,
                most = rows.empty() ? 0 : rows.back(), x_stride = e4m3 ? stride : k;
  const auto copies = static_cast<int>(std::clamp<int64_t>(kColdBytes / weight_bytes, 1, kTimedRuns));
  // The last copy reaches to its padding: own kernels may read the rows behind n.
  const gpu::Memory w(static_cast<size_t>((copies - 1) * n * stride * bytes + weight_bytes)),
      x(static_cast<size_t>(most * x_stride * bytes)), out(static_cast<size_t>(std::min(most * n * 4, kMostOutBytes)));
  if (w.data() == nullptr || x.data() == nullptr || out.data() == nullptr) return false;
  std::optional<gpu::Memory> ones;  // all scales, in whatever order, and the bias
  if (e4m3 || weight.biased) {
    const bool blocks = weight.numbers == LtNumbers::kBlockScales;
    const int64_t groups = blocks ? kernels::LibraryBlockPitch(k) : 1;
    ones.emplace(static_cast<size_t>(groups * std::max(InWhole(n, 128), InWhole(most, 128)) * 4));
    if (ones->data() == nullptr) return false;
    constexpr uint16_t kOne[] = {0x0000, 0x3F80};  // in f32
    std::vector<uint16_t> pattern(kPattern);
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = kOne[i % 2];
    FillWith(pattern, *ones);
  }
  std::minstd_rand random(1);
  std::vector<uint16_t> numbers(kPattern);  // between 1 and 2, of both signs
  for (uint16_t& number : numbers)
    number = static_cast<uint16_t>(e4m3 ? 0x3838 | (random() & 0x8787) : 0x3F80 | (random() & 0x807F));
  FillWith(numbers, w);
  FillWith(numbers, x);
  stream_.FillAsync(out.data(), 0, out.bytes());
  DenseProduct like{x.data(), w.data(), out.data(), x_stride, stride, n, 0, weight.n, weight.k};
  like.numbers = weight.numbers;
  if (weight.biased) like.bias = ones->data();
  if (e4m3) like.x_scales = like.w_scales = static_cast<const float*>(ones->data());
  for (const auto& [wide, adds] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    if (e4m3 && adds) continue;  // what is added to is no form of theirs
    like.wide = wide, like.adds = adds;
    MeasureKind(like, copies, rows, own, timer);
  }
  EndIfDeviceFailed(stream_.Synchronize());
  return true;
}

// Again and again.
void LtLinear::FillWith(std::span<const uint16_t> numbers, const gpu::Memory& to) {
  for (size_t at = 0; at < to.bytes(); at += numbers.size() * 2)
    stream_.Upload(static_cast<char*>(to.data()) + at, numbers.data(), std::min(to.bytes() - at, numbers.size() * 2));
}

std::string LtLinear::about() const {
  std::string out = absl::StrFormat("cuBLASLt %d: taken for %d of %d products that were measured (%.2f s)", version(),
                                    taken_, measured_, seconds_);
  if (taken_ > 0)
    absl::StrAppendFormat(&out, ", which take %.0f %% of the own time", 100 * won_seconds_ / own_seconds_);
  if (without_room_ > 0) absl::StrAppendFormat(&out, "; no memory to measure %d shapes of weights", without_room_);
  if (not_known_ > 0) {
    absl::StrAppendFormat(&out, "; it has no scales of rows and blocks before 12.9: %d shapes in e4m3 are not its",
                          not_known_);
  }
  return out;
}

LtLinear::Timer HostTimer(gpu::Stream& stream) {
  return [&stream](const DenseProduct&, bool, const std::function<void(int)>& run) {
    run(0);
    EndIfDeviceFailed(stream.Synchronize());
    const double begin = Now();
    for (int i = 1; i <= kTimedRuns; ++i) run(i);
    EndIfDeviceFailed(stream.Synchronize());
    return (Now() - begin) / kTimedRuns;
  };
}

}  // namespace baton::cuda
