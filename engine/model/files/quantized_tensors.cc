#include "engine/model/files/quantized_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/foreign_text.h"
#include "common/status.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

using Format = Quantization::Format;

constexpr std::string_view kFloat8 = "F8_E4M3";
constexpr const char* kInputScale = ".input_scale";

const char* CodesName(Format format) {
  if (format == Format::kFloat8) return ".weight";
  return format == Format::kPacked ? ".weight_packed" : ".qweight";
}

class LayerReader {
 public:
  LayerReader(const Quantization& how, std::string layer, int64_t outputs, int64_t inputs, FindTensor find)
      : how_(how), layer_(std::move(layer)), n_(outputs), k_(inputs), find_(find) {}

  absl::StatusOr<LayerCodes> Read() {
    kernels::StoredCodes& codes = out_.codes;
    codes.n = n_;
    codes.k = k_;
    codes.group = how_.group == 0 ? k_ : how_.group;
    codes.zero_offset = how_.zero_offset;
    if (k_ % codes.group != 0) {
      return absl::InvalidArgumentError(
          StrCat(layer_, ": groups of ", codes.group, " (group_size) do not divide its ", k_, " inputs"));
    }
    if (how_.format == Format::kFloat8) {
      BATON_RETURN_IF_ERROR(Float8());
      return std::move(out_);
    }
    const int64_t per_word = 32 / how_.bits;
    if (how_.format != Format::kAwq && k_ % per_word != 0) return NotWhole("inputs", k_, per_word);
    if (NeedsWholeOutputs() && n_ % per_word != 0) return NotWhole("outputs", n_, per_word);
    BATON_RETURN_IF_ERROR(how_.format == Format::kPacked ? Packed(per_word) : Columns(per_word));
    BATON_RETURN_IF_ERROR(GroupsOfInputs(how_.format == Format::kPacked ? ".weight_g_idx" : ".g_idx"));
    return std::move(out_);
  }

 private:
  bool NeedsWholeOutputs() const { return how_.format != Format::kPacked || !how_.symmetric; }
  absl::Status NotWhole(const char* what, int64_t count, int64_t per_word) const {
    return absl::InvalidArgumentError(
        StrCat(layer_, ": ", count, " ", what, " are not whole words of ", per_word, " codes of ", how_.bits, " bits"));
  }

  // The bytes of a tensor that has to be there.
  absl::StatusOr<const uint8_t*> Tensor(const char* suffix, std::initializer_list<std::string_view> types,
                                        const std::vector<int64_t>& shape) {
    const std::string name = layer_ + suffix;
    const TensorPlace* place = find_(name);
    if (place == nullptr) return absl::NotFoundError(StrCat("tensor ", name, " is missing"));
    const SafeTensor& tensor = *place->tensor;
    if (tensor.shape != shape) {
      return absl::InvalidArgumentError(
          StrCat(place->file->name(), ": ", name, " has shape ", ShapeText(tensor.shape), ", a weight of ", n_, " × ",
                 k_, " in ", how_.bits, " bits and groups of ", out_.codes.group, " asks for ", ShapeText(shape)));
    }
    if (std::ranges::find(types, tensor.type) == types.end()) {
      return absl::InvalidArgumentError(StrCat(place->file->name(), ": ", name, " has type ", Printable(tensor.type),
                                               ", not ", types.size() == 1 ? *types.begin() : "F16, BF16 or F32"));
    }
    out_.tensors.push_back(*place);
    return place->file->Bytes(tensor).data();
  }
  absl::StatusOr<const uint8_t*> Scales(const char* suffix, const std::vector<int64_t>& shape) {
    BATON_ASSIGN_OR_RETURN(const uint8_t* const data, Tensor(suffix, {"F16", "BF16", "F32"}, shape));
    out_.codes.scale_type = *DTypeOfSafetensors(out_.tensors.back().tensor->type);
    return data;
  }

  // AWQ and GPTQ: a column for each output, in rows of inputs and of groups.
  absl::Status Columns(int64_t per_word) {
    kernels::StoredCodes& codes = out_.codes;
    const int64_t groups = codes.groups(), words = n_ / per_word;
    const bool awq = how_.format == Format::kAwq;
    const std::vector<int64_t> shape = awq ? std::vector{k_, words} : std::vector{k_ / per_word, n_};
    codes.codes = {
        .bits = how_.bits, .along_outputs = awq, .awq_order = awq, .output_stride = 1, .input_stride = shape[1]};
    codes.zeros = {
        .bits = how_.bits, .along_outputs = true, .awq_order = awq, .output_stride = 1, .input_stride = words};
    BATON_ASSIGN_OR_RETURN(codes.codes.data, Tensor(".qweight", {"I32"}, shape));
    BATON_ASSIGN_OR_RETURN(codes.zeros.data, Tensor(".qzeros", {"I32"}, {groups, words}));
    BATON_ASSIGN_OR_RETURN(codes.scales, Scales(".scales", {groups, n_}));
    codes.scale_output_stride = 1;
    codes.scale_group_stride = n_;
    return absl::OkStatus();
  }

  // compressed-tensors: a row for each output.
  absl::Status Packed(int64_t per_word) {
    kernels::StoredCodes& codes = out_.codes;
    const int64_t groups = codes.groups(), words = k_ / per_word;
    codes.codes = {.bits = how_.bits, .output_stride = words, .input_stride = 1};
    BATON_ASSIGN_OR_RETURN(codes.codes.data, Tensor(".weight_packed", {"I32"}, {n_, words}));
    BATON_ASSIGN_OR_RETURN(codes.scales, Scales(".weight_scale", {n_, groups}));
    codes.scale_output_stride = groups;
    codes.scale_group_stride = 1;
    if (!how_.symmetric) {
      codes.zeros = {.bits = how_.bits, .along_outputs = true, .output_stride = groups, .input_stride = 1};
      BATON_ASSIGN_OR_RETURN(codes.zeros.data, Tensor(".weight_zero_point", {"I32"}, {n_ / per_word, groups}));
    }
    if (const TensorPlace* shape = find_(layer_ + ".weight_shape"); shape != nullptr) out_.tensors.push_back(*shape);
    return absl::OkStatus();
  }

  // A row for each output, a byte for each number. A list may have the scales where rows have one each, a number where
  // there is one.
  absl::Status Float8() {
    kernels::StoredCodes& codes = out_.codes;
    codes.kind = kernels::CodeKind::kE4m3;
    if (k_ % 4 != 0) return NotWhole("inputs", k_, 4);
    const int64_t outputs = how_.outputs == 0 ? n_ : how_.outputs, rows = (n_ + outputs - 1) / outputs;
    codes.codes = {.bits = 8, .output_stride = k_ / 4, .input_stride = 1};
    BATON_ASSIGN_OR_RETURN(codes.codes.data, Tensor(".weight", {kFloat8}, {n_, k_}));
    std::vector<int64_t> shape = {rows, codes.groups()};
    const TensorPlace* const scales = find_(layer_ + how_.scales);
    if (scales != nullptr && codes.groups() == 1) {
      const std::vector<int64_t>& found = scales->tensor->shape;
      if (found == std::vector{rows} || (found.empty() && rows == 1)) shape = found;
    }
    BATON_ASSIGN_OR_RETURN(codes.scales, Scales(how_.scales, shape));
    codes.scale_outputs = outputs;
    codes.scale_output_stride = codes.groups();
    codes.scale_group_stride = 1;
    codes.rounding.kind = how_.inputs;
    if (how_.inputs == kernels::InputRounding::Kind::kFixed) return InputScale();
    if (const TensorPlace* inputs = find_(layer_ + kInputScale); inputs != nullptr) out_.tensors.push_back(*inputs);
    return absl::OkStatus();
  }

  // The one scale of a layer's inputs, in a list or not.
  absl::Status InputScale() {
    const TensorPlace* const found = find_(layer_ + kInputScale);
    const bool list = found != nullptr && found->tensor->shape == std::vector<int64_t>{1};
    BATON_ASSIGN_OR_RETURN(const uint8_t* const data, Tensor(kInputScale, {"F16", "BF16", "F32"},
                                                             list ? std::vector<int64_t>{1} : std::vector<int64_t>{}));
    float& scale = out_.codes.rounding.scale;
    ConvertElements(*DTypeOfSafetensors(out_.tensors.back().tensor->type), data, DType::kF32, &scale, 1);
    if (std::isfinite(scale) && scale > 0.0f) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(layer_, kInputScale, " is ", scale, ": the scale of inputs is a number above 0"));
  }

  absl::Status GroupsOfInputs(const char* suffix) {
    if (how_.format == Format::kAwq) return absl::OkStatus();
    if (find_(layer_ + suffix) == nullptr) {
      if (!how_.act_order) return absl::OkStatus();
      return absl::NotFoundError(StrCat("tensor ", layer_, suffix,
                                        " is missing, the config says that inputs are ordered (desc_act, actorder)"));
    }
    BATON_ASSIGN_OR_RETURN(const uint8_t* const data, Tensor(suffix, {"I32"}, {k_}));
    for (int64_t i = 0; i < k_; ++i) {
      int32_t g;
      std::memcpy(&g, data + i * 4, sizeof g);
      if (g >= 0 && g < out_.codes.groups()) continue;
      return absl::InvalidArgumentError(
          StrCat(layer_, suffix, ": input ", i, " is of group ", g, " of ", out_.codes.groups()));
    }
    out_.codes.group_of_input = data;
    return absl::OkStatus();
  }

  const Quantization& how_;
  const std::string layer_;
  const int64_t n_, k_;
  const FindTensor find_;
  LayerCodes out_;
};

}  // namespace

bool HasCodes(const Quantization& how, const std::string& layer, FindTensor find) {
  const TensorPlace* const place = find(layer + CodesName(how.format));
  return place != nullptr && (how.format != Format::kFloat8 || place->tensor->type == kFloat8);
}

absl::StatusOr<LayerCodes> OpenCodes(const Quantization& how, const std::string& layer, int64_t outputs, int64_t inputs,
                                     FindTensor find) {
  return LayerReader(how, layer, outputs, inputs, find).Read();
}

}  // namespace baton::engine
