// What a config.json says of the codes that a checkpoint's linear layers are stored in.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quantized/input_rounding.h"

namespace baton::engine {

/// Which layers have codes is seen by their tensors' names: others are floats.
struct Quantization {
  /// kPacked: compressed-tensors' pack-quantized; kFloat8: numbers in e4m3, of "fp8" and float-quantized.
  enum class Format { kAwq, kGptq, kPacked, kFloat8 };
  std::string method;  ///< quant_method, for messages
  Format format = Format::kAwq;
  int bits = 4;                          ///< 4 or 8
  int64_t group = 0;                     ///< inputs that share a scale; 0: all of an output's
  int64_t outputs = 1;                   ///< kFloat8: outputs that share their scales; 0: all
  bool symmetric = false;                ///< kPacked: there are no zeros
  const char* scales = ".weight_scale";  ///< kFloat8: the tensor's name behind its layer's
  /// kFloat8: what inputs become before they are multiplied; the config says so for the whole model.
  kernels::InputRounding::Kind inputs = kernels::InputRounding::Kind::kNone;
  bool act_order = false;  ///< inputs are in groups by their activations: each layer says which is in which
  int zero_offset = 0;     ///< kGptq: what a stored zero is less than the zero
};

/// The quantization_config of a config.json; none: it has none. InvalidArgument names what cannot be served.
absl::StatusOr<std::optional<Quantization>> ParseQuantization(const nlohmann::json& config, const std::string& where);

}  // namespace baton::engine
