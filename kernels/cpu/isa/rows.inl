// Row-wise kernels: norms, adds, activations, conversions, rotary embedding, reductions over logits.
// Included by table_*.cc after simd_*.h and simd_math.h.

namespace {

using baton::kernels::Activation;

template <class T>
inline float MeanSquare(const T* x, int n) {
  Vec sum = Zero();
  ForChunks(n, [&](int64_t i, int c) {
    const Vec v = c == 16 ? LoadAs(x + i) : LoadAs(x + i, c);
    sum = Fma(v, v, sum);
  });
  return SumLanes(sum) / static_cast<float>(n);
}

inline float InverseRoot(float x) { return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

void RmsNorm(const float* x, const float* weight, float offset, float eps, int n, void* out, DType out_dtype) {
  const Vec scale = Set(InverseRoot(MeanSquare(x, n) + eps));
  const Vec plus = Set(offset);
  WithType(out, out_dtype, [&](auto* to) {
    ForChunks(n, [&](int64_t i, int c) {
      if (c == 16) StoreAs(to + i, Mul(Mul(Load(x + i), scale), Add(Load(weight + i), plus)));
      else StoreAs(to + i, Mul(Mul(Load(x + i, c), scale), Add(Load(weight + i, c), plus)), c);
    });
  });
}

void AddRow(const void* x, DType dtype, float* residual, int n) {
  WithType(x, dtype, [&](const auto* from) {
    ForChunks(n, [&](int64_t i, int c) {
      if (c == 16) Store(residual + i, Add(Load(residual + i), LoadAs(from + i)));
      else Store(residual + i, Add(Load(residual + i, c), LoadAs(from + i, c)), c);
    });
  });
}

inline Vec Silu(Vec x) { return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }
/// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))).
inline Vec GeluTanh(Vec x) {
  const Vec inner = Mul(Set(0.7978845608028654f), Fma(Mul(Mul(x, x), x), Set(0.044715f), x));
  return Mul(Mul(Set(0.5f), x), Add(Set(1.0f), Tanh(inner)));
}

void Gated(Activation act, const void* gate_up, DType dtype, int n, void* out) {
  WithType(gate_up, dtype, [&](const auto* gate) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(gate)>>;
    const T* up = gate + n;
    T* to = static_cast<T*>(out);
    ForChunks(n, [&](int64_t i, int c) {
      const Vec g = c == 16 ? LoadAs(gate + i) : LoadAs(gate + i, c);
      const Vec u = c == 16 ? LoadAs(up + i) : LoadAs(up + i, c);
      const Vec y = Mul(act == Activation::kSilu ? Silu(g) : GeluTanh(g), u);
      if (c == 16) StoreAs(to + i, y);
      else StoreAs(to + i, y, c);
    });
  });
}

void Convert(const void* src, DType src_dtype, float scale, void* dst, DType dst_dtype, int n) {
  const Vec factor = Set(scale);
  WithStoredType(src, src_dtype, [&](const auto* from) {
    WithStoredType(dst, dst_dtype, [&](auto* to) {
      ForChunks(n, [&](int64_t i, int c) {
        if (c == 16) StoreAs(to + i, Mul(LoadAs(from + i), factor));
        else StoreAs(to + i, Mul(LoadAs(from + i, c), factor), c);
      });
    });
  });
}

void NormRope(void* head, DType dtype, int head_dim, const float* norm, float norm_offset, float eps,
              const float* cosines, const float* sines, int rotary_dim) {
  WithType(head, dtype, [&](auto* x) {
    if (norm != nullptr) {
      const Vec scale = Set(InverseRoot(MeanSquare(x, head_dim) + eps));
      const Vec plus = Set(norm_offset);
      ForChunks(head_dim, [&](int64_t i, int c) {
        StoreAs(x + i, Mul(Mul(LoadAs(x + i, c), scale), Add(Load(norm + i, c), plus)), c);
      });
    }
    const int half = rotary_dim / 2;
    ForChunks(half, [&](int64_t i, int c) {
      const Vec a = LoadAs(x + i, c), b = LoadAs(x + half + i, c);
      const Vec cosine = Load(cosines + i, c), sine = Load(sines + i, c);
      StoreAs(x + i, Sub(Mul(a, cosine), Mul(b, sine)), c);
      StoreAs(x + half + i, Fma(a, sine, Mul(b, cosine)), c);
    });
  });
}

void SoftCapRow(float cap, float* x, int64_t n) {
  const Vec limit = Set(cap), inverse = Set(1.0f / cap);
  ForChunks(n, [&](int64_t i, int c) { Store(x + i, Mul(limit, Tanh(Mul(Load(x + i, c), inverse))), c); });
}

float MaxOf(const float* x, int64_t n) {
  Vec best = Set(-__builtin_inff());  // second operand of Max: a NaN never gets in
  const Vec lowest = best;
  ForChunks(n, [&](int64_t i, int c) { best = Max(c == 16 ? Load(x + i) : KeepLanes(Load(x + i, c), 0, c, lowest), best); });
  return MaxLanes(best);
}

double SumExp(const float* x, float shift, float scale, int64_t n) {
  constexpr int64_t kChunk = 4096;  // f32 inside, f64 across
  const Vec s = Set(shift), factor = Set(scale);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    Vec sum = Zero();
    ForChunks(n - begin < kChunk ? n - begin : kChunk, [&](int64_t i, int c) {
      const Vec e = Exp(Mul(Sub(Load(x + begin + i, c), s), factor));
      sum = Add(sum, c == 16 ? e : KeepLanes(e, 0, c, Zero()));
    });
    total += SumLanes(sum);
  }
  return total;
}

int64_t ArgMax(const float* x, int64_t n) {
  const float best = MaxOf(x, n);
  const Vec wanted = Set(best);
  for (int64_t i = 0; i < n; i += 16) {
    const int c = static_cast<int>(n - i < 16 ? n - i : 16);
    const uint32_t hit = EqualMask(Load(x + i, c), wanted) & ((1u << c) - 1u);
    if (hit != 0) return i + __builtin_ctz(hit);
  }
  return 0;
}

}  // namespace
