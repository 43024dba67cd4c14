// Where weights come from: safetensors, GGUF, or a random generator. One face for the loader.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/gguf.h"
#include "engine/model/config/model_config.h"
#include "engine/model/config/quantization.h"
#include "engine/model/kv_groups.h"
#include "engine/model/weight_rules.h"
#include "kernels/quantized/stored_codes.h"

namespace baton::engine {

/// A box of a tensor: what one rank reads of it.
struct WeightPart {
  WeightRule rule;
  int64_t first_row = 0, rows = 0;
  int64_t first_column = 0, columns = 0;
  static WeightPart Whole(WeightRule rule) {
    const int64_t rows = rule.rows(), columns = rule.columns();
    return {std::move(rule), 0, rows, 0, columns};
  }
  int64_t elements() const { return rows * columns; }
};

/// A tensor as it is stored: for the model's digest.
struct StoredWeight {
  std::string_view type;            ///< "BF16", "Q4_K", "dummy"
  absl::Span<const uint8_t> bytes;  ///< empty: made, not stored
};

/// Codes as kernels::QuantizedWeight has them: `group` neighbours of a row share a scale.
struct CodeFormat {
  kernels::CodeKind kind = kernels::CodeKind::kInteger;
  int bits = 0;
  kernels::StoredCodes::Layout layout;
  kernels::InputRounding rounding;
  bool operator==(const CodeFormat&) const = default;
  /// Inputs that are kept of `columns`: those that fill up groups are among them.
  int64_t Inputs(int64_t columns) const {
    return layout.inputs.empty() ? columns : static_cast<int64_t>(layout.inputs.size());
  }
};

/// Immutable after opening; any thread. Check a rule before anything else is asked about it.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// NotFound: no such tensor. InvalidArgument: another shape (with both), or a type that cannot be read.
  virtual absl::Status Check(const WeightRule& rule) const = 0;
  /// The type in which reading loses nothing or is cheapest: f32, bf16 or f16.
  virtual DType NativeType(const WeightRule& rule) const = 0;
  /// Writes rows [first, first + count) as `type`: the native type, f32 or bf16. A vector has rows of one element.
  virtual void ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const = 0;
  /// Writes the rows [first, first + count) of `part`, its columns only. This one reads whole rows and keeps the part.
  virtual void ReadPart(const WeightPart& part, int64_t first, int64_t count, DType type, void* out) const;
  /// Writes all of a part, on `threads` threads where that pays. InvalidArgument: a number of it is not finite, with
  /// its place and value in the files.
  absl::Status Read(const WeightPart& part, DType type, void* out, int threads = 1) const;
  absl::Status Read(const WeightRule& rule, DType type, void* out, int threads = 1) const {
    return Read(WeightPart::Whole(rule), type, out, threads);
  }
  /// The codes that a part is stored in, where a device could compute with them as they are; else none.
  virtual std::optional<CodeFormat> Codes(const WeightPart&) const { return std::nullopt; }
  /// The codes of a part. Only where Codes has some. InvalidArgument: as Read.
  absl::StatusOr<kernels::QuantizedWeight> ReadCodes(const WeightPart& part) const;
  /// What the files say of KV in e4m3. InvalidArgument names what is no scale, with its value.
  virtual absl::StatusOr<KvScales> ReadKvScales() const { return KvScales{}; }
  /// All that the weight is stored in: codes have scales beside them.
  virtual std::vector<StoredWeight> Stored(const WeightRule& rule) const = 0;
  /// Tensors in the files that are no part of the model: counted for a log line, given those that are.
  virtual int64_t Unused(int64_t used) const = 0;

 protected:
  /// ReadCodes, unseen.
  virtual absl::StatusOr<kernels::QuantizedWeight> TakeCodes(const WeightPart& part) const;
  /// What the files have for one element that is not finite, with its file: "m.gguf: output_norm.weight[7] is nan".
  virtual std::string Origin(const WeightRule& rule, int64_t row, int64_t column) const = 0;
};

/// The safetensors of an HF directory: model.safetensors.index.json and its shards, or one .safetensors file. Layers
/// that have codes are read as `quantization` says.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfWeights(const std::string& directory, const ModelConfig& config,
                                                            const std::optional<Quantization>& quantization = {});

/// The tensors of a GGUF file, dequantized to f32 or, rounded once, to bf16. Where the file has q and k rows in
/// interleaved rope order (Family::gguf_pairs), they come back in rotate-half order.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenGgufWeights(std::shared_ptr<const GgufFile> file,
                                                              const ModelConfig& config);

/// Random weights: a function of seed, tensor name and element index alone (see dummy_weights.cc).
std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config, uint64_t seed);

/// Converts n elements; `to` is `from`, f32 or bf16. `in` need not be aligned.
void ConvertElements(DType from, const uint8_t* in, DType to, void* out, int64_t n);

/// "[3, 4]", of a shape or of a place in it.
std::string ShapeText(absl::Span<const int64_t> shape);

}  // namespace baton::engine
