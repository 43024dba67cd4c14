#include "engine/model/config/quantization.h"

#include <vector>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/model/config/json_fields.h"

namespace baton::engine {
namespace {

constexpr int64_t kMaxGroup = 1 << 20;
using Inputs = kernels::InputRounding::Kind;

// Bits and group under either of two names.
void ReadSizes(JsonFields& in, std::string_view bits, std::string_view other_bits, std::string_view group,
               std::string_view other_group, Quantization& out) {
  out.bits = static_cast<int>(in.Int(in.Has(bits) || !in.Has(other_bits) ? bits : other_bits, 1, 64));
  const int64_t wide = in.Int(in.Has(group) || !in.Has(other_group) ? group : other_group, -1, kMaxGroup);
  if (wide == 0) in.Fail(StrCat(group, " is 0"));
  out.group = wide < 0 ? 0 : wide;
}

void CheckBits(JsonFields& in, std::string_view method, std::initializer_list<int> served, int bits) {
  std::string known;
  for (const int one : served) {
    if (bits == one) return;
    known += StrCat(known.empty() ? "" : ", ", one);
  }
  in.Fail(StrCat(method, " of ", bits, " bits is not supported (", known, " are)"));
}

void ReadAwq(JsonFields& in, Quantization& out) {
  out.format = Quantization::Format::kAwq;
  ReadSizes(in, "bits", "w_bit", "group_size", "q_group_size", out);
  CheckBits(in, "awq", {4}, out.bits);
  const std::string version = in.StringOr("version", "gemm");
  if (version != "gemm" && version != "GEMM")
    in.Fail(StrCat("awq of version ", Quoted(version), " is not supported (\"gemm\" is)"));
  if (!in.BoolOr("zero_point", true)) in.Fail("awq without zero points (zero_point false) is not supported");
}

void ReadGptq(JsonFields& in, Quantization& out) {
  out.format = Quantization::Format::kGptq;
  ReadSizes(in, "bits", "w_bit", "group_size", "q_group_size", out);
  CheckBits(in, "gptq", {4, 8}, out.bits);
  const std::string format = in.StringOr("checkpoint_format", in.BoolOr("is_marlin_format", false) ? "marlin" : "gptq");
  if (format != "gptq" && format != "gptq_v2")
    in.Fail(StrCat("gptq in checkpoint_format ", Quoted(format), " is not supported (\"gptq\", \"gptq_v2\" are)"));
  out.act_order = in.BoolOr("desc_act", false);
  out.zero_offset = format == "gptq" ? 1 : 0;
  if (const std::string pack = in.StringOr("pack_dtype", "int32"); pack != "int32")
    in.Fail(StrCat("gptq packed into ", Quoted(pack), " is not supported (int32 is)"));
  if (const nlohmann::json* dynamic = in.Object("dynamic"); dynamic != nullptr) {
    for (const auto& [name, rule] : dynamic->items()) {
      if (name.starts_with("-:")) continue;  // layers that are floats
      return in.Fail(StrCat("gptq with bits or groups of single layers (dynamic ", Quoted(name), ") is not supported"));
    }
  }
}

// A group of layers of compressed-tensors, all of them.
void ReadPackedGroup(JsonFields& in, Quantization& out) {
  if (in.Object("input_activations") != nullptr)
    return in.Fail("compressed-tensors with integer activations (input_activations) is not supported");
  const nlohmann::json* weights = in.Object("weights");
  if (weights == nullptr) return in.Fail("compressed-tensors without weights");
  JsonFields w(*weights, StrCat(in.where(), ".weights"));
  out.bits = static_cast<int>(w.Int("num_bits", 1, 64));
  CheckBits(w, "compressed-tensors", {4, 8}, out.bits);
  if (const std::string type = w.StringOr("type", "int"); type != "int")
    w.Fail(StrCat("compressed-tensors pack-quantized of type ", Quoted(type), " is not supported (int is)"));
  out.act_order = w.StringOr("actorder", "") == "group";
  out.symmetric = w.BoolOr("symmetric", true);
  const std::string strategy = w.StringOr("strategy", "group");
  if (strategy == "group") {
    out.group = w.Int("group_size", 1, kMaxGroup);
  } else if (strategy != "channel") {
    w.Fail(StrCat("compressed-tensors of strategy ", Quoted(strategy), " is not supported (group, channel are)"));
  }
  in.Adopt(w);
}

// The inputs and outputs of a block that has one scale: [outputs, inputs].
void ReadBlock(JsonFields& in, std::string_view key, Quantization& out) {
  const std::vector<int64_t> block = in.IntOrInts(key);
  const auto fits = [](int64_t side) { return side >= 1 && side <= kMaxGroup; };
  if (block.size() != 2 || !fits(block[0]) || !fits(block[1]))
    return in.Fail(StrCat(key, " is not two positive numbers of at most ", kMaxGroup));
  out.outputs = block[0];
  out.group = block[1];
}

// Weights as numbers of 8 bits: what is served is e4m3. Inputs become e4m3, too.
void ReadFloat8(JsonFields& in, Quantization& out) {
  out.format = Quantization::Format::kFloat8;
  out.bits = 8;
  const std::string number = in.StringOr("fmt", "e4m3"), inputs = in.StringOr("activation_scheme", "dynamic");
  if (number != "e4m3") in.Fail(StrCat("fp8 of fmt ", Quoted(number), " is not supported (e4m3 is)"));
  if (inputs != "dynamic" && inputs != "static") {
    in.Fail(StrCat("fp8 with activation_scheme ", Quoted(inputs), " is not supported (\"dynamic\", \"static\" are)"));
  }
  out.inputs = inputs == "static" ? Inputs::kFixed : Inputs::kByToken;
  if (!in.Has("weight_block_size")) {
    out.outputs = 0;
    return;
  }
  out.scales = ".weight_scale_inv";
  ReadBlock(in, "weight_block_size", out);
  if (out.inputs == Inputs::kFixed)
    in.Fail("fp8 in blocks (weight_block_size) with activation_scheme \"static\" is not supported (\"dynamic\" is)");
}

// How inputs become float8. Where scales are found as tokens come each token has its own, whatever is asked for: a
// row must not depend on the others of its batch.
void ReadFloatInputs(JsonFields& in, Quantization& out) {
  const std::string strategy = in.StringOr("strategy", "tensor");
  const bool dynamic = in.BoolOr("dynamic", false);
  const auto refuse = [&](std::string_view served) {
    in.Fail(StrCat("compressed-tensors float-quantized with ", dynamic ? "dynamic" : "static", " inputs of strategy ",
                   Quoted(strategy), out.group != 0 ? " and weights in blocks" : "", " is not supported (", served,
                   ")"));
  };
  out.inputs = dynamic ? Inputs::kByToken : Inputs::kFixed;
  if (!in.BoolOr("symmetric", true))
    in.Fail("compressed-tensors float-quantized with symmetric false is not supported");
  if (!dynamic) {
    if (strategy != "tensor" || out.group != 0) refuse("tensor with weights of one scale or one for each channel is");
  } else if (strategy == "group") {
    if (const int64_t group = in.Int("group_size", 1, kMaxGroup); group != out.group && in.status().ok()) {
      in.Fail(StrCat("compressed-tensors float-quantized with inputs in groups of ", group,
                     " (group_size) and weights ",
                     out.group == 0 ? std::string("of one group") : StrCat("in groups of ", out.group),
                     " is not supported (equal ones are)"));
    }
  } else if (strategy != "token" && strategy != "tensor") {
    refuse("token, tensor, group are");
  }
}

// Float8 layers of compressed-tensors; their inputs may be said to be float8, too.
void ReadFloatGroup(JsonFields& in, Quantization& out) {
  out.format = Quantization::Format::kFloat8;
  for (const char* of : {"weights", "input_activations"}) {
    const nlohmann::json* object = in.Object(of);
    if (object == nullptr && of == std::string_view("input_activations")) return;
    if (object == nullptr) return in.Fail("compressed-tensors without weights");
    JsonFields numbers(*object, StrCat(in.where(), ".", of));
    out.bits = static_cast<int>(numbers.Int("num_bits", 1, 64));
    CheckBits(numbers, "compressed-tensors float-quantized", {8}, out.bits);
    if (const std::string type = numbers.StringOr("type", "float"); type != "float")
      numbers.Fail(StrCat("compressed-tensors float-quantized of type ", Quoted(type), " is not supported (float is)"));
    if (of == std::string_view("weights")) {
      const std::string strategy = numbers.StringOr("strategy", "tensor");
      if (strategy == "block") {
        ReadBlock(numbers, "block_structure", out);
      } else if (strategy == "tensor" || strategy == "channel") {
        out.outputs = strategy == "tensor" ? 0 : 1;
      } else {
        numbers.Fail(StrCat("compressed-tensors float-quantized of strategy ", Quoted(strategy),
                            " is not supported (tensor, channel, block are)"));
      }
    } else {
      ReadFloatInputs(numbers, out);
    }
    in.Adopt(numbers);
  }
}

// What KV may be kept in, with scales that are tensors of the file: e4m3 with one for a layer's keys and one for its
// values. Nobody has to keep it so.
void CheckKvScheme(JsonFields& in) {
  CheckBits(in, "compressed-tensors with KV", {8}, static_cast<int>(in.Int("num_bits", 1, 64)));
  if (const std::string type = in.StringOr("type", "int"); type != "float")
    in.Fail(StrCat("compressed-tensors with KV of type ", Quoted(type), " is not supported (float is)"));
  if (const std::string strategy = in.StringOr("strategy", "tensor"); strategy != "tensor")
    in.Fail(StrCat("compressed-tensors with KV of strategy ", Quoted(strategy), " is not supported (tensor is)"));
}

void ReadCompressed(JsonFields& in, Quantization& out) {
  out.format = Quantization::Format::kPacked;
  const std::string format = in.StringOr("format", "");
  if (format != "pack-quantized" && format != "float-quantized") {
    return in.Fail(StrCat("compressed-tensors of format ", Quoted(format),
                          " is not supported (pack-quantized, float-quantized are)"));
  }
  const nlohmann::json* groups = in.Object("config_groups");
  if (groups == nullptr || groups->size() != 1) {
    return in.Fail(StrCat("compressed-tensors with ", groups == nullptr ? 0 : groups->size(),
                          " config_groups is not supported (one is)"));
  }
  const std::string where = StrCat(in.where(), ".config_groups.", Printable(groups->begin().key()));
  if (!groups->begin()->is_object()) return in.Fail(StrCat(where, " is no object"));
  JsonFields group(*groups->begin(), where);
  format == "pack-quantized" ? ReadPackedGroup(group, out) : ReadFloatGroup(group, out);
  in.Adopt(group);
  if (const nlohmann::json* kv = in.Object("kv_cache_scheme"); kv != nullptr) {
    JsonFields scheme(*kv, StrCat(in.where(), ".kv_cache_scheme"));
    CheckKvScheme(scheme);
    in.Adopt(scheme);
  }
}

}  // namespace

absl::StatusOr<std::optional<Quantization>> ParseQuantization(const nlohmann::json& config, const std::string& where) {
  JsonFields fields(config, where);
  const nlohmann::json* object = fields.Object("quantization_config");
  BATON_RETURN_IF_ERROR(fields.status());
  if (object == nullptr) return std::nullopt;
  JsonFields in(*object, StrCat(where, ": quantization_config"));
  Quantization out;
  out.method = in.StringOr("quant_method", "");
  if (out.method == "awq") {
    ReadAwq(in, out);
  } else if (out.method == "gptq") {
    ReadGptq(in, out);
  } else if (out.method == "compressed-tensors") {
    ReadCompressed(in, out);
  } else if (out.method == "fp8") {
    ReadFloat8(in, out);
  } else {
    in.Fail(StrCat("quant_method ", Quoted(out.method),
                   " is not supported (awq, gptq, fp8, compressed-tensors are); use the float weights or a GGUF file"));
  }
  BATON_RETURN_IF_ERROR(in.status());
  return out;
}

}  // namespace baton::engine
