// Weights of a GGUF file, dequantized row by row.
#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/half.h"
#include "common/status.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/files/gguf_dequant.h"
#include "engine/model/weight_source.h"
#include "kernels/quantized/checkpoint_formats.h"

namespace baton::engine {
namespace {

class GgufWeights : public WeightSource {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, const ModelConfig& config, bool interleaved)
      : file_(std::move(file)), config_(config), interleaved_(interleaved) {}

  absl::Status Check(const WeightRule& rule) const override;
  DType NativeType(const WeightRule& rule) const override;
  void ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const override;
  std::optional<CodeFormat> Codes(const WeightPart& part) const override {
    const GgmlType type = At(part.rule).type;
    if (type != GgmlType::kQ4_0 && type != GgmlType::kQ8_0) return std::nullopt;
    const int64_t block = GgmlBlockOf(type).elements;
    if (part.first_column % block != 0 || part.columns % block != 0) return std::nullopt;
    return CodeFormat{.bits = type == GgmlType::kQ4_0 ? 4 : 8, .layout = {static_cast<int>(block), {}}};
  }
  absl::StatusOr<kernels::QuantizedWeight> TakeCodes(const WeightPart& part) const override;
  std::string Origin(const WeightRule& rule, int64_t row, int64_t column) const override;
  std::vector<StoredWeight> Stored(const WeightRule& rule) const override {
    const GgufTensor& tensor = At(rule);
    return {{GgmlBlockOf(tensor.type).name, file_->Bytes(tensor)}};
  }
  int64_t Unused(int64_t used) const override {
    const int64_t config = file_->FindTensor("rope_freqs.weight") != nullptr ? 1 : 0;  // read with the metadata
    return static_cast<int64_t>(file_->tensors().size()) - used - config;
  }

 private:
  const GgufTensor& At(const WeightRule& rule) const {
    const GgufTensor* tensor = file_->FindTensor(GgufName(rule));
    BATON_CHECK(tensor != nullptr, GgufName(rule), " was not checked");
    return *tensor;
  }
  int64_t SourceRow(const WeightRule& rule, int64_t row) const;

  const std::shared_ptr<const GgufFile> file_;
  const ModelConfig config_;
  const bool interleaved_;  // q and k rows lie in pairs (2i, 2i + 1) instead of (i, i + head_dim / 2)
};

// The file's dimensions run the other way; trailing ones of 1 say nothing.
std::vector<int64_t> RowMajorShape(const GgufTensor& tensor) {
  std::vector<int64_t> shape(tensor.dims.rbegin(), tensor.dims.rend());
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

absl::Status GgufWeights::Check(const WeightRule& rule) const {
  const std::string name = GgufName(rule);
  const GgufTensor* tensor = file_->FindTensor(name);
  if (tensor == nullptr) return absl::NotFoundError(StrCat("tensor ", name, " is missing"));
  if (RowMajorShape(*tensor) != rule.shape) {
    return absl::InvalidArgumentError(StrCat(file_->name(), ": ", name, " has shape ",
                                             ShapeText(RowMajorShape(*tensor)), ", the metadata asks for ",
                                             ShapeText(rule.shape)));
  }
  const GgmlBlock block = GgmlBlockOf(tensor->type);
  if (!CanDequantize(tensor->type)) {
    return absl::InvalidArgumentError(
        StrCat(file_->name(), ": ", name, " has type ", block.name,
               " (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K are supported)"));
  }
  if (rule.shape.size() == 1 && block.elements > 1) {
    return absl::InvalidArgumentError(StrCat(file_->name(), ": vector ", name, " is quantized (", block.name, ")"));
  }
  if (rule.shape.back() % block.elements != 0) {
    return absl::InvalidArgumentError(StrCat(file_->name(), ": ", name, ": rows of ", rule.shape.back(),
                                             " elements are not whole ", block.name, " blocks of ", block.elements));
  }
  return absl::OkStatus();
}

DType GgufWeights::NativeType(const WeightRule& rule) const {
  switch (At(rule).type) {
    case GgmlType::kF32: return DType::kF32;
    case GgmlType::kF16: return DType::kF16;
    case GgmlType::kBF16: return DType::kBF16;
    default: return DType::kF32;  // a block's floats are no 16-bit ones
  }
}

int64_t GgufWeights::SourceRow(const WeightRule& rule, int64_t row) const {
  const bool rotated = rule.weight == Weight::kQuery || rule.weight == Weight::kKey ||
                       rule.weight == Weight::kQueryBias || rule.weight == Weight::kKeyBias;
  if (!interleaved_ || !rotated) return row;
  const int64_t dim = config_.head_dim, in_head = row % dim;
  return row - in_head + in_head % (dim / 2) * 2 + in_head / (dim / 2);
}

void GgufWeights::ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const {
  const GgufTensor& tensor = At(rule);
  const GgmlBlock block = GgmlBlockOf(tensor.type);
  const uint8_t* data = file_->Bytes(tensor).data();
  const DType native = NativeType(rule);
  const bool quantized = block.elements > 1;
  const int64_t columns = rule.columns();
  const int64_t row_bytes = columns / block.elements * block.bytes;
  const size_t out_bytes = static_cast<size_t>(columns) * DTypeBytes(type);
  std::vector<float> floats(quantized && type == DType::kBF16 ? columns : 0);
  char* to = static_cast<char*>(out);
  for (int64_t row = first; row < first + count; ++row, to += out_bytes) {
    const uint8_t* from = data + SourceRow(rule, row) * row_bytes;
    if (!quantized) {
      ConvertElements(native, from, type, to, columns);
    } else if (type == DType::kF32) {
      Dequantize(tensor.type, from, columns, reinterpret_cast<float*>(to));
    } else {
      Dequantize(tensor.type, from, columns, floats.data());
      ConvertElements(DType::kF32, reinterpret_cast<const uint8_t*>(floats.data()), type, to, columns);
    }
  }
}

// The element, or the number of its block that makes it what it is.
std::string GgufWeights::Origin(const WeightRule& rule, int64_t row, int64_t column) const {
  const GgufTensor& tensor = At(rule);
  const GgmlBlock block = GgmlBlockOf(tensor.type);
  const int64_t from = SourceRow(rule, row), first = column / block.elements * block.elements;
  const uint8_t* const data =
      file_->Bytes(tensor).data() + (from * rule.columns() + first) / block.elements * block.bytes;
  const std::string name = StrCat(file_->name(), ": ", GgufName(rule));
  if (block.elements > 1) {
    return StrCat(name, "[", from, ", ", first, "…", first + block.elements - 1, "] has the ",
                  NumberNotFinite(tensor.type, data));
  }
  float value;
  Dequantize(tensor.type, data, 1, &value);
  return StrCat(name, rule.shape.size() == 1 ? ShapeText({from}) : ShapeText({from, column}), " is ", value);
}

absl::StatusOr<kernels::QuantizedWeight> GgufWeights::TakeCodes(const WeightPart& part) const {
  const GgufTensor& tensor = At(part.rule);
  const GgmlBlock block = GgmlBlockOf(tensor.type);
  const auto bytes_of = [&](int64_t columns) { return static_cast<size_t>(columns / block.elements * block.bytes); };
  const size_t row_bytes = bytes_of(part.rule.columns()), first = bytes_of(part.first_column),
               taken = bytes_of(part.columns);
  const uint8_t* const data = file_->Bytes(tensor).data();
  std::vector<std::byte> blocks(taken * static_cast<size_t>(part.rows));
  for (int64_t row = 0; row < part.rows; ++row) {
    const auto from = static_cast<size_t>(SourceRow(part.rule, part.first_row + row));
    std::memcpy(blocks.data() + static_cast<size_t>(row) * taken, data + from * row_bytes + first, taken);
  }
  const int n = static_cast<int>(part.rows), k = static_cast<int>(part.columns);
  return tensor.type == GgmlType::kQ4_0 ? kernels::UnpackQ4_0(blocks, n, k) : kernels::UnpackQ8_0(blocks, n, k);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenGgufWeights(std::shared_ptr<const GgufFile> file,
                                                              const ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::string_view architecture, file->GetString("general.architecture"));
  const bool interleaved = GgufHoldsPairs(architecture);
  return std::make_unique<GgufWeights>(std::move(file), config, interleaved);
}

}  // namespace baton::engine
