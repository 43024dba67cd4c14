#include "kernels/runtime/emulated_cublas_lt.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/float8.h"
#include "common/half.h"
#include "kernels/runtime/runtime.h"
#include "kernels/simt/device_memory.h"

namespace baton::gpu {

struct LtHandle {
  int made = 0;
};
struct LtOperation {
  int compute = 0, scale_type = 0;
  int32_t transpose_a = kLtAsItIs, transpose_b = kLtAsItIs;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
  int32_t bias_type = -1;  ///< d's
  const void *scales_a = nullptr, *scales_b = nullptr;
  int32_t mode_a = kLtOneScale, mode_b = kLtOneScale;
};
struct LtLayout {
  int type = 0;
  int64_t rows = 0, columns = 0, ld = 0;
  int64_t bytes() const { return type == kLtF32 ? 4 : type == kLtBf16 ? 2 : 1; }
  /// From its first element to its last.
  size_t extent() const { return static_cast<size_t>(((columns - 1) * ld + rows) * bytes()); }
};
struct LtPreference {
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  ///< of a, b, c, d
};

namespace {

constexpr uint64_t kProposed = 0x6C74'616C'676F;  ///< marks an algorithm that `propose` made
constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t kVectorAlignment = 16;  ///< of scales, and the most that a bias is asked for
constexpr int64_t kScaled = 128;         ///< inputs that share a scale, and outputs
constexpr size_t kNewest = 130000;
std::atomic<int64_t> lt_calls = 0, lt_refusals = 0, lt_fails_at = 0, lt_columns = std::numeric_limits<int64_t>::max();
std::atomic<int> lt_fails_with = kLtSuccess;
std::atomic<size_t> lt_version = kNewest;

/// What tells problems apart.
uint64_t ProblemOf(const LtOperation& o, const LtLayout& a, const LtLayout& b, const LtLayout& c, const LtLayout& d) {
  uint64_t hash = static_cast<uint64_t>(o.transpose_a * 2 + o.transpose_b) + 0x9E37'79B9'7F4A'7C15;
  const auto take = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x0000'0100'0000'01B3;
    hash ^= hash >> 29;
  };
  for (const LtLayout* layout : {&a, &b, &c, &d})
    for (const int64_t value : {int64_t{layout->type}, layout->rows, layout->columns, layout->ld}) take(value);
  for (const int64_t value : {int64_t{o.epilogue}, int64_t{o.bias_type}, int64_t{o.mode_a}, int64_t{o.mode_b}})
    take(value);
  return hash;
}

/// An algorithm: kProposed, the problem, its parts of k, workspace, alignments of two matrices in each of two words.
struct Algorithm {
  uint64_t mark = 0, problem = 0, parts = 1, workspace_bytes = 0;
  uint32_t alignment[4] = {};
  uint64_t bias_alignment = 0, unused = 0;
};
static_assert(sizeof(Algorithm) == sizeof(LtAlgorithm));

/// A null pointer is as aligned as any.
size_t AlignmentOf(const void* p) {
  const auto at = reinterpret_cast<size_t>(p);
  return at == 0 ? kVectorAlignment : std::min(kVectorAlignment, at & -at);
}
bool IsE4m3(const LtLayout& a, const LtLayout& b) { return a.type == kLtE4m3 && b.type == kLtE4m3; }

bool GoTogether(const LtOperation& o, const LtLayout& a, const LtLayout& b, const LtLayout& c, const LtLayout& d) {
  return a.rows == b.rows && d.rows == a.columns && d.columns == b.columns && c.rows == d.rows &&
         c.columns == d.columns && c.ld == d.ld && c.type == d.type && o.compute == kLtComputeF32 &&
         o.scale_type == kLtF32 && o.transpose_a == kLtTransposed && o.transpose_b == kLtAsItIs &&
         (IsE4m3(a, b) || (a.type == kLtBf16 && b.type == kLtBf16)) && (d.type == kLtBf16 || d.type == kLtF32);
}
bool TypesTheBias(const LtOperation& o, const LtLayout& a, const LtLayout& b, const LtLayout& d) {
  const int type = o.bias_type < 0 ? d.type : o.bias_type;
  return o.epilogue != kLtAddsBias || type == (IsE4m3(a, b) ? kLtBf16 : d.type);
}
/// Whether it has products for such scales.
bool Scales(const LtOperation& o, const LtLayout& a, const LtLayout& b, const LtLayout& d) {
  const auto either = [](int32_t mode) { return mode == kLtScaleOf128 || mode == kLtScaleOfBlock; };
  if (!IsE4m3(a, b)) return o.mode_a == kLtOneScale && o.mode_b == kLtOneScale;
  if (a.rows % 16 != 0 || d.rows * d.bytes() % 16 != 0) return false;
  if (o.mode_a == kLtOneScale) return o.mode_b == kLtOneScale;
  if (lt_version < kLtOwnScales) return false;
  if (o.mode_a == kLtScaleOfColumn) return o.mode_b == kLtScaleOfColumn;
  return either(o.mode_a) && either(o.mode_b) && (o.mode_a == kLtScaleOf128 || o.mode_b == kLtScaleOf128) &&
         a.columns % 4 == 0 && b.columns % 4 == 0;
}

/// The scales of one matrix of `inputs` rows.
struct ScaleTable {
  const float* at = nullptr;
  int32_t mode = kLtOneScale;
  int64_t columns = 0, inputs = 0;
  static int64_t Up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  int64_t groups() const { return Up(inputs, kScaled) / kScaled; }
  size_t extent() const {
    const int64_t count = mode == kLtOneScale        ? 1
                          : mode == kLtScaleOfColumn ? columns
                          : mode == kLtScaleOf128    ? columns * groups()
                                                     : Up(groups(), 4) * (Up(columns, kScaled) / kScaled);
    return static_cast<size_t>(count) * sizeof(float);
  }
  float Of(int64_t column, int64_t input) const {
    switch (mode) {
      case kLtScaleOfColumn: return at[column];
      case kLtScaleOf128: return at[input / kScaled * columns + column];
      case kLtScaleOfBlock: return at[column / kScaled * Up(groups(), 4) + input / kScaled];
      default: return *at;
    }
  }
};

/// One product on its way.
struct Product {
  LtLayout a, b, d;
  const char *weights = nullptr, *inputs = nullptr;
  const char* added = nullptr;
  char* target = nullptr;
  char* workspace = nullptr;
  size_t workspace_bytes = 0;
  float alpha = 1, beta = 0;
  int64_t parts = 1;
  int device = 0;
  const void* bias = nullptr;
  int bias_type = kLtBf16;
  ScaleTable a_scales = {}, b_scales = {};  ///< of e4m3
  std::vector<float> kept = {};             ///< what it adds to, once it has begun

  static float Number(const char* from, const LtLayout& layout, int64_t column, int64_t row) {
    const char* const at = from + (column * layout.ld + row) * layout.bytes();
    uint16_t half = 0;
    if (layout.type == kLtE4m3) return FloatOfE4m3(static_cast<uint8_t>(*at));
    return std::memcpy(&half, at, sizeof(half)), FloatOfBf16(half);
  }
  char* At(int64_t row, int64_t column) const { return target + (column * d.ld + row) * d.bytes(); }
  void Store(int64_t row, int64_t column, float value) const {
    const uint16_t half = Bf16OfFloat(value);
    if (d.type == kLtF32)
      std::memcpy(At(row, column), &value, sizeof(value));
    else
      std::memcpy(At(row, column), &half, sizeof(half));
  }
  float Load(int64_t row, int64_t column) const {
    const char* const at = added + (At(row, column) - target);
    float value = 0;
    uint16_t half = 0;
    if (d.type == kLtF32) return std::memcpy(&value, at, sizeof(value)), value;
    return std::memcpy(&half, at, sizeof(half)), FloatOfBf16(half);
  }
  float Bias(int64_t row) const {
    if (bias == nullptr) return 0;
    return bias_type == kLtF32 ? static_cast<const float*>(bias)[row]
                               : FloatOfBf16(static_cast<const uint16_t*>(bias)[row]);
  }

  void Begin() {
    simt::RunKernelsOf(device);
    BATON_CHECK(simt::KernelMayTouch(weights, a.extent()) && simt::KernelMayTouch(inputs, b.extent()) &&
                    simt::KernelMayTouch(target, d.extent()) && simt::KernelMayTouch(added, d.extent()) &&
                    (workspace_bytes == 0 || simt::KernelMayTouch(workspace, workspace_bytes)) && MayTouchVectors(),
                "cuBLASLt is given memory that is not the device's");
    kept.resize(beta == 0 ? 0 : static_cast<size_t>(d.rows * d.columns));
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, workspace_bytes);
    for (int64_t column = 0; column < d.columns; ++column) {
      for (int64_t row = 0; row < d.rows; ++row) {
        if (beta != 0) kept[static_cast<size_t>(column * d.rows + row)] = Load(row, column);
        Store(row, column, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  bool MayTouchVectors() const {
    const size_t bias_bytes = static_cast<size_t>(d.rows) * (bias_type == kLtF32 ? 4 : 2);
    if (bias != nullptr && !simt::KernelMayTouch(bias, bias_bytes)) return false;
    return a.type != kLtE4m3 || (simt::KernelMayTouch(a_scales.at, a_scales.extent()) &&
                                 simt::KernelMayTouch(b_scales.at, b_scales.extent()));
  }
  /// The weights times their scales: all of an input, then all of the next one.
  std::vector<float> ScaledWeights() const {
    std::vector<float> out(static_cast<size_t>(a.rows * a.columns));
    for (int64_t row = 0; row < a.columns; ++row) {
      for (int64_t i = 0; i < a.rows; ++i) {
        const float scale = a.type == kLtE4m3 ? a_scales.Of(row, i) : 1;
        out[static_cast<size_t>(i * a.columns + row)] = scale * Number(weights, a, row, i);
      }
    }
    return out;
  }
  /// One column of sums, each in `parts` interleaved ones, from the last product to the first.
  std::vector<float> SumsOf(int64_t column, const std::vector<float>& scaled) const {
    const auto rows = static_cast<size_t>(d.rows);
    std::vector<float> sums(static_cast<size_t>(parts) * rows, 0.0f);
    for (int64_t i = a.rows - 1; i >= 0; --i) {
      const float x = (a.type == kLtE4m3 ? b_scales.Of(column, i) : 1) * Number(inputs, b, column, i);
      const float* const w = &scaled[static_cast<size_t>(i) * rows];
      float* const part = &sums[static_cast<size_t>(i % parts) * rows];
      for (size_t row = 0; row < rows; ++row) part[row] += w[row] * x;
    }
    for (size_t at = rows; at < sums.size(); ++at) sums[at % rows] += sums[at];
    return sums;
  }
  void Complete() const {
    const std::vector<float> scaled = ScaledWeights();
    for (int64_t column = 0; column < d.columns; ++column) {
      const std::vector<float> sums = SumsOf(column, scaled);
      for (int64_t row = 0; row < d.rows; ++row) {
        float value = std::fma(alpha, sums[static_cast<size_t>(row)], Bias(row));
        if (beta != 0) value = std::fma(beta, kept[static_cast<size_t>(column * d.rows + row)], value);
        Store(row, column, value);
      }
    }
  }
};

size_t Version() { return lt_version; }
const char* Text(int result) {
  switch (result) {
    case kLtSuccess: return "success";
    case kLtInvalidValue: return "an unsupported value";
    case kLtNotSupported: return "not supported";
    default: return "an error";
  }
}

template <class Object, class... Values>
int Make(Object** out, Values... values) {
  *out = new Object{values...};
  return kLtSuccess;
}
template <class Object>
int Drop(Object* object) {
  delete object;
  return kLtSuccess;
}
int MakeLayout(LtLayout** out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  const auto high = static_cast<int64_t>(rows);
  if (high < 1 || columns < 1 || ld < high || (type != kLtF32 && type != kLtBf16 && type != kLtE4m3))
    return kLtInvalidValue;
  *out = new LtLayout{type, high, static_cast<int64_t>(columns), ld};
  return kLtSuccess;
}

template <class Value>
int Take(Value& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(Value)) return kLtInvalidValue;
  std::memcpy(&to, value, bytes);
  return kLtSuccess;
}
int SetOperation(LtOperation* operation, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case kLtTransposeA: return Take(operation->transpose_a, value, bytes);
    case kLtTransposeB: return Take(operation->transpose_b, value, bytes);
    case kLtEpilogue: return Take(operation->epilogue, value, bytes);
    case kLtBiasPointer: return Take(operation->bias, value, bytes);
    case kLtBiasType: return Take(operation->bias_type, value, bytes);
    case kLtScalesOfA: return Take(operation->scales_a, value, bytes);
    case kLtScalesOfB: return Take(operation->scales_b, value, bytes);
    case kLtScaleModeA: return Take(operation->mode_a, value, bytes);
    case kLtScaleModeB: return Take(operation->mode_b, value, bytes);
    default: return kLtInvalidValue;
  }
}
int SetPreference(LtPreference* preference, int attribute, const void* value, size_t bytes) {
  if (attribute == kLtMostWorkspaceBytes) return Take(preference->workspace_bytes, value, bytes);
  if (attribute < kLtAlignmentA || attribute > kLtAlignmentD) return kLtInvalidValue;
  return Take(preference->alignment[attribute - kLtAlignmentA], value, bytes);
}

int Propose(LtHandle* handle, LtOperation* operation, LtLayout* a, LtLayout* b, LtLayout* c, LtLayout* d,
            LtPreference* preference, int asked, LtProposal* proposals, int* count) {
  *count = 0;
  if (handle == nullptr || asked < 1) return kLtInvalidValue;
  if (!GoTogether(*operation, *a, *b, *c, *d)) return kLtInvalidValue;
  const LtLayout* const layouts[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (layouts[i]->ld * layouts[i]->bytes() % 16 != 0) return kLtNotSupported;  // as of kernels that read by TMA
  if (d->columns > lt_columns || !TypesTheBias(*operation, *a, *b, *d) || !Scales(*operation, *a, *b, *d))
    return kLtNotSupported;
  Algorithm algorithm{.mark = kProposed, .problem = ProblemOf(*operation, *a, *b, *c, *d)};
  algorithm.parts = 2 + algorithm.problem % 3;
  algorithm.workspace_bytes = algorithm.parts * static_cast<uint64_t>(d->rows * d->columns) * sizeof(float);
  if (algorithm.workspace_bytes > preference->workspace_bytes) algorithm.parts = 2, algorithm.workspace_bytes = 0;
  std::ranges::copy(preference->alignment, algorithm.alignment);
  algorithm.bias_alignment = AlignmentOf(operation->bias);
  proposals[0] = {std::bit_cast<LtAlgorithm>(algorithm), algorithm.workspace_bytes, kLtSuccess, 1.0f, {}};
  *count = 1;
  return kLtSuccess;
}

int Refuse() {
  ++lt_refusals;
  return kLtInvalidValue;
}

int Multiply(LtHandle* handle, LtOperation* operation, const void* alpha, const void* a, LtLayout* a_layout,
             const void* b, LtLayout* b_layout, const void* beta, const void* c, LtLayout* c_layout, void* d,
             LtLayout* d_layout, const LtAlgorithm* chosen, void* workspace, size_t workspace_bytes, void* stream) {
  ++lt_calls;
  if (const int64_t at = lt_fails_at; at > 0 && --lt_fails_at == 0) return ++lt_refusals, lt_fails_with.load();
  if (handle == nullptr || chosen == nullptr || stream == nullptr || !a || !b || !c || !d) return Refuse();
  const auto algorithm = std::bit_cast<Algorithm>(*chosen);
  if (algorithm.mark != kProposed ||
      algorithm.problem != ProblemOf(*operation, *a_layout, *b_layout, *c_layout, *d_layout))
    return Refuse();
  const void* const pointers[] = {a, b, c, d};
  const LtLayout* const layouts[] = {a_layout, b_layout, c_layout, d_layout};
  for (int i = 0; i < 4; ++i) {
    const size_t least = algorithm.alignment[i];
    if (reinterpret_cast<size_t>(pointers[i]) % least != 0 ||
        static_cast<size_t>(layouts[i]->ld * layouts[i]->bytes()) % std::min<size_t>(least, 16) != 0)
      return Refuse();
  }
  const bool e4m3 = IsE4m3(*a_layout, *b_layout), biased = operation->epilogue == kLtAddsBias;
  const void *const a_scales = operation->scales_a, *const b_scales = operation->scales_b;
  if (biased && (operation->bias == nullptr || AlignmentOf(operation->bias) < algorithm.bias_alignment))
    return Refuse();
  if (!e4m3 && (a_scales != nullptr || b_scales != nullptr)) return Refuse();
  if (e4m3 && (AlignmentOf(a_scales) < kVectorAlignment || AlignmentOf(b_scales) < kVectorAlignment)) return Refuse();
  if (e4m3 && (a_scales == nullptr || b_scales == nullptr))
    return Refuse();  // there they would be one: nobody means it
  if (workspace_bytes < algorithm.workspace_bytes ||
      (algorithm.workspace_bytes > 0 && reinterpret_cast<size_t>(workspace) % kWorkspaceAlignment != 0))
    return Refuse();
  auto& to = *static_cast<Stream*>(stream);
  Product product{*a_layout, *b_layout, *d_layout};
  product.weights = static_cast<const char*>(a);
  product.inputs = static_cast<const char*>(b);
  product.added = static_cast<const char*>(c);
  product.target = static_cast<char*>(d);
  product.workspace = static_cast<char*>(workspace);
  product.workspace_bytes = algorithm.workspace_bytes;
  product.alpha = *static_cast<const float*>(alpha);
  product.beta = *static_cast<const float*>(beta);
  product.parts = static_cast<int64_t>(algorithm.parts);
  product.device = to.device();
  if (biased) product.bias = operation->bias;
  product.bias_type = operation->bias_type < 0 ? d_layout->type : operation->bias_type;
  product.a_scales = {static_cast<const float*>(a_scales), operation->mode_a, a_layout->columns, a_layout->rows};
  product.b_scales = {static_cast<const float*>(b_scales), operation->mode_b, b_layout->columns, b_layout->rows};
  to.EnqueueSteps([product]() -> Stream::Steps {
    return [running = std::make_shared<Product>(product), turn = 0]() mutable {
      if (turn == 0) running->Begin();
      if (++turn < 3) return false;
      running->Complete();
      return true;
    };
  });
  return kLtSuccess;
}

}  // namespace

const CublasLtApi& EmulatedCublasLt() {
  static const CublasLtApi api = {
      &Version,
      &Text,
      [](LtHandle** out) { return Make(out); },
      &Drop<LtHandle>,
      [](LtOperation** out, int compute, int scale_type) { return Make(out, compute, scale_type); },
      &Drop<LtOperation>,
      &SetOperation,
      &MakeLayout,
      &Drop<LtLayout>,
      [](LtPreference** out) { return Make(out); },
      &Drop<LtPreference>,
      &SetPreference,
      &Propose,
      &Multiply};
  return api;
}

const CublasLtApi* EmulatedCublasLtByEnvironment() {
  const char* const on = std::getenv("BATON_EMULATED_CUBLASLT");
  return on != nullptr && std::string_view(on) == "1" ? &EmulatedCublasLt() : nullptr;
}

int64_t EmulatedLtCalls() { return lt_calls; }
int64_t EmulatedLtRefusals() { return lt_refusals; }
void FailEmulatedLt(int64_t call, int result) {
  lt_fails_with = result;
  lt_fails_at = call;
}
void SupportEmulatedLtUpTo(int64_t columns) {
  lt_columns = columns > 0 ? columns : std::numeric_limits<int64_t>::max();
}
void SetEmulatedLtVersion(size_t version) { lt_version = version > 0 ? version : kNewest; }

}  // namespace baton::gpu
