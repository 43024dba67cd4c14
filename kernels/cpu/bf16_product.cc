#include "kernels/cpu/bf16_product.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "common/check.h"
#include "common/half.h"
#include "common/status.h"
#include "dnnl.hpp"
#include "kernels/cpu/aligned_vector.h"

extern "C" void omp_set_num_threads(int threads);  // declared here: clang has no <omp.h> without its own runtime

namespace baton::kernels::cpu {
namespace {

constexpr int64_t kSizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr int64_t kLayoutSize = 128;  ///< the size whose favourite weight layout is used by all

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// This thread's queue. oneDNN's own threads stay out of it: slices are what Baton's pool shares out.
dnnl::stream& Stream() {
  thread_local dnnl::stream stream = [] {
    omp_set_num_threads(1);
    return dnnl::stream(Engine());
  }();
  return stream;
}

void* Scratchpad(size_t bytes) {
  thread_local AlignedVector<std::byte> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

dnnl::inner_product_forward::primitive_desc Describe(int64_t rows, int64_t k, int64_t columns,
                                                     const dnnl::memory::desc& weights) {
  const dnnl::memory::desc x({rows, k}, Type::bf16, Tag::ab), out({rows, columns}, Type::f32, Tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {{dnnl::prop_kind::forward_inference, x, weights, out}, attributes, Engine()};
}

}  // namespace

std::string OneDnnIsa(const std::string& cap) {
  static const std::map<std::string, dnnl::cpu_isa> names = {{"avx2", dnnl::cpu_isa::avx2},
                                                             {"avx512_core", dnnl::cpu_isa::avx512_core_vnni},
                                                             {"avx512_core_bf16", dnnl::cpu_isa::avx512_core_bf16},
                                                             {"avx512_core_amx", dnnl::cpu_isa::avx512_core_amx}};
  static std::once_flag once;
  std::call_once(once, [&cap] {
    if (const auto found = names.find(cap); found != names.end()) dnnl::set_max_cpu_isa(found->second);
  });
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_amx: return "avx512_core_amx";
    case dnnl::cpu_isa::avx512_core_bf16: return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni: return "avx512_core";
    default: return "avx2";
  }
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl::version();
  return StrCat(version->major, ".", version->minor, ".", version->patch);
}

struct Bf16Product::Primitives {
  struct One {
    dnnl::inner_product_forward primitive;
    dnnl::inner_product_forward::primitive_desc desc;
  };
  dnnl::memory::desc weights;
  std::map<int64_t, One> by_size;
};

Bf16Product::Bf16Product(int64_t k, int64_t columns)
    : k_(k), columns_(columns), primitives_(std::make_unique<Primitives>()) {}
Bf16Product::~Bf16Product() = default;

absl::StatusOr<std::unique_ptr<Bf16Product>> Bf16Product::Make(int64_t k, int64_t columns) {
  Stream();  // one oneDNN thread, before a primitive is planned for more
  std::unique_ptr<Bf16Product> made(new Bf16Product(k, columns));
  Primitives& primitives = *made->primitives_;
  try {
    primitives.weights = Describe(kLayoutSize, k, columns, {{columns, k}, Type::bf16, Tag::any}).weights_desc();
  } catch (const dnnl::error& e) {
    return absl::FailedPreconditionError(
        StrCat("oneDNN has no bf16 inner_product of ", k, " to ", columns, " on this machine: ", e.what()));
  }
  for (int64_t size : kSizes) {
    try {
      auto desc = Describe(size, k, columns, primitives.weights);
      if (std::string_view(desc.impl_info_str()).starts_with("ref")) continue;  // right, and hundreds of times slower
      primitives.by_size.emplace(size, Primitives::One{dnnl::inner_product_forward(desc), desc});
    } catch (const dnnl::error&) {
      continue;  // no kernel of this size for this layout
    }
  }
  if (primitives.by_size.empty()) {
    return absl::FailedPreconditionError(
        StrCat("oneDNN has only its reference bf16 inner_product of ", k, " to ", columns, " on this machine"));
  }
  made->ChooseSizes();
  return made;
}

size_t Bf16Product::packed_bytes() const { return primitives_->weights.get_size(); }

void Bf16Product::Pack(const uint16_t* weight, void* packed) const {
  dnnl::memory from({{columns_, k_}, Type::bf16, Tag::ab}, Engine(), const_cast<uint16_t*>(weight));
  dnnl::memory to(primitives_->weights, Engine(), packed);
  dnnl::reorder(from, to).execute(Stream(), from, to);
  Stream().wait();
}

int64_t Bf16Product::NextSize(int64_t rows) const {
  const auto above = std::lower_bound(sizes_.begin(), sizes_.end(), rows);
  if (above == sizes_.end()) return sizes_.back();
  // Padding a few rows costs less than reading the weights twice; with many rows the arithmetic is what costs.
  return *above == rows || rows <= 64 || above == sizes_.begin() ? *above : *(above - 1);
}

void Bf16Product::Run(int64_t size, const void* x, const void* packed, float* out) const {
  const Primitives::One& one = primitives_->by_size.at(size);
  dnnl::stream& stream = Stream();
  const dnnl::memory::desc scratch = one.desc.scratchpad_desc();
  one.primitive.execute(stream, {{DNNL_ARG_SRC, {one.desc.src_desc(), Engine(), const_cast<void*>(x)}},
                                 {DNNL_ARG_WEIGHTS, {primitives_->weights, Engine(), const_cast<void*>(packed)}},
                                 {DNNL_ARG_DST, {one.desc.dst_desc(), Engine(), out}},
                                 {DNNL_ARG_SCRATCHPAD, {scratch, Engine(), Scratchpad(scratch.get_size())}}});
  stream.wait();
}

namespace {

// Runs rows of pseudo-random numbers through the sizes of one shape, and compares rows bit for bit.
class RowCheck {
 public:
  RowCheck(const Bf16Product& product, int64_t k, int64_t columns)
      : product_(product), k_(k), columns_(columns), packed_(product.packed_bytes()) {
    for (auto& row : rows_) row = Numbers(k);
    weight_ = Numbers(columns * k);
    product.Pack(weight_.data(), packed_.data());
  }
  /// The same rows against other weights [columns, k].
  void UseWeights(const uint16_t* weight) { product_.Pack(weight, packed_.data()); }
  const uint16_t* weight() const { return weight_.data(); }
  /// The four rows alone at the first, second, middle and last place of `size` among other rows; the outputs, one after
  /// another.
  std::vector<float> Outputs(int64_t size) {
    AlignedVector<uint16_t> x(static_cast<size_t>(size * k_));
    AlignedVector<float> out(static_cast<size_t>(size * columns_));
    std::vector<float> all;
    for (int shift = 0; shift < 4; ++shift) {
      const std::vector<uint16_t> others = Numbers(size * k_);
      std::copy(others.begin(), others.end(), x.begin());
      const int64_t places[] = {0, std::min<int64_t>(1, size - 1), size / 2, size - 1};
      std::copy(rows_[shift].begin(), rows_[shift].end(), x.begin() + places[shift] * k_);
      product_.Run(size, x.data(), packed_.data(), out.data());
      all.insert(all.end(), out.begin() + places[shift] * columns_, out.begin() + (places[shift] + 1) * columns_);
    }
    return all;
  }
  /// Row 0 has the same bits at every place of `size`.
  bool PlacesAgree(int64_t size) {
    for (auto& row : rows_) row = rows_[0];
    const std::vector<float> all = Outputs(size);
    for (int64_t i = columns_; i < 4 * columns_; ++i) {
      if (std::memcmp(&all[static_cast<size_t>(i)], &all[static_cast<size_t>(i % columns_)], sizeof(float)) != 0)
        return false;
    }
    return true;
  }

 private:
  std::vector<uint16_t> Numbers(int64_t count) {
    std::vector<uint16_t> numbers(static_cast<size_t>(count));
    for (uint16_t& n : numbers) n = Bf16OfFloat(static_cast<float>(static_cast<int32_t>(rng_())) * 0x1p-31f);
    return numbers;
  }
  const Bf16Product& product_;
  int64_t k_, columns_;
  AlignedVector<std::byte> packed_;
  std::mt19937 rng_{20};
  std::vector<uint16_t> rows_[4], weight_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

bool Bf16Product::ColumnsAgree(const Bf16Product& narrow) const {
  RowCheck wide_check(*this, k_, columns_), narrow_check(narrow, k_, narrow.columns_);
  const std::vector<float> wide = wide_check.Outputs(sizes_.front());
  for (int64_t first = 0; first < columns_; first += narrow.columns_) {
    narrow_check.UseWeights(wide_check.weight() + first * k_);
    const std::vector<float> part = narrow_check.Outputs(narrow.sizes_.front());
    for (int64_t row = 0; row < 4; ++row) {
      const float* theirs = wide.data() + row * columns_ + first;
      if (std::memcmp(theirs, part.data() + row * narrow.columns_,
                      static_cast<size_t>(narrow.columns_) * sizeof(float)) != 0)
        return false;
    }
  }
  return true;
}

void Bf16Product::ChooseSizes() {
  RowCheck check(*this, k_, columns_);
  const std::vector<float> alone = check.Outputs(primitives_->by_size.begin()->first);
  for (const auto& [size, one] : primitives_->by_size) {
    if (SameBits(check.Outputs(size), alone)) sizes_.push_back(size);
  }
  if (sizes_.size() > 1 && sizes_.back() >= 16) return;
  for (int64_t size : {16, 8, 32, 4, 2}) {
    if (primitives_->by_size.contains(size) && check.PlacesAgree(size)) {
      sizes_ = {size};
      return;
    }
  }
  BATON_CHECK(!sizes_.empty());
}

}  // namespace baton::kernels::cpu
