// The tensors of one linear layer in codes, found by their names in an HF checkpoint and checked.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/model/config/quantization.h"
#include "engine/model/files/safetensors.h"
#include "kernels/quantized/stored_codes.h"

namespace baton::engine {

struct TensorPlace {
  const SafetensorsFile* file;
  const SafeTensor* tensor;
};
/// Null: there is no tensor of that name.
using FindTensor = absl::FunctionRef<const TensorPlace*(const std::string& name)>;

/// Whether `layer` ("model.layers.3.mlp.up_proj") has codes.
bool HasCodes(const Quantization& how, const std::string& layer, FindTensor find);

struct LayerCodes {
  kernels::StoredCodes codes;        ///< a view of the files
  std::vector<TensorPlace> tensors;  ///< all that they are made of
};
/// The codes of `layer`, a weight [outputs, inputs]. NotFound: a tensor is missing; InvalidArgument: another shape or
/// type, a group that does not divide the inputs, an input of a group that is not there; each with its numbers.
absl::StatusOr<LayerCodes> OpenCodes(const Quantization& how, const std::string& layer, int64_t outputs, int64_t inputs,
                                     FindTensor find);

}  // namespace baton::engine
