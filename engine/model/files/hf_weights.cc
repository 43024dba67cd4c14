// Weights of an HF directory: one safetensors file, or shards named by an index.
#include <algorithm>
#include <filesystem>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/model/config/json_fields.h"
#include "engine/model/files/finite.h"
#include "engine/model/files/kv_scales.h"
#include "engine/model/files/quantized_tensors.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxIndexBytes = 256 << 20;
constexpr const char* kIndexName = "model.safetensors.index.json";

// Where checkpoints keep the decoder: alone, or as the text tower of a multimodal model (older and newer layout).
struct Prefix {
  std::string_view body, head;
};
constexpr Prefix kPrefixes[] = {
    {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}, {"", ""}};

class HfWeights : public WeightSource {
 public:
  HfWeights(const ModelConfig& config, const std::optional<Quantization>& quantization)
      : config_(config), quantization_(quantization) {}
  absl::Status OpenSharded(const std::string& directory);
  absl::Status OpenSingle(const std::string& path);
  absl::Status FindPrefix(const std::string& directory);

  absl::Status Check(const WeightRule& rule) const override;
  DType NativeType(const WeightRule& rule) const override {
    return InCodes(rule) ? DType::kF32 : *DTypeOfSafetensors(At(rule).tensor->type);
  }
  void ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const override {
    ReadPart(WeightPart::Whole(rule), first, count, type, out);
  }
  // Touches the bytes of the part alone.
  void ReadPart(const WeightPart& part, int64_t first, int64_t count, DType type, void* out) const override {
    const DType native = NativeType(part.rule);
    const int64_t from_bytes = static_cast<int64_t>(DTypeBytes(native)),
                  to_bytes = part.columns * static_cast<int64_t>(DTypeBytes(type));
    const bool in_codes = InCodes(part.rule);
    const kernels::StoredCodes codes = in_codes ? CodesOf(part.rule)->codes : kernels::StoredCodes{};
    const uint8_t* const data = in_codes ? nullptr : At(part.rule).file->Bytes(*At(part.rule).tensor).data();
    std::vector<float> values(in_codes ? static_cast<size_t>(part.columns) : 0);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = part.first_row + first + r;
      const uint8_t* from = data + (row * part.rule.columns() + part.first_column) * from_bytes;
      if (in_codes) {
        codes.ReadRow(row, part.first_column, part.columns, values.data());
        from = reinterpret_cast<const uint8_t*>(values.data());
      }
      ConvertElements(native, from, type, static_cast<char*>(out) + r * to_bytes, part.columns);
    }
  }
  std::optional<CodeFormat> Codes(const WeightPart& part) const override {
    if (!InCodes(part.rule)) return std::nullopt;
    const kernels::StoredCodes codes = CodesOf(part.rule)->codes;
    auto layout = codes.LayoutOf(part.first_column, part.columns);
    if (!layout) return std::nullopt;
    return CodeFormat{codes.kind, codes.codes.bits, *std::move(layout), codes.rounding};
  }
  absl::StatusOr<kernels::QuantizedWeight> TakeCodes(const WeightPart& part) const override {
    const kernels::StoredCodes codes = CodesOf(part.rule)->codes;
    return codes.Take(part.first_row, part.rows, part.first_column, part.columns,
                      *codes.LayoutOf(part.first_column, part.columns));
  }
  absl::StatusOr<KvScales> ReadKvScales() const override {
    return FindKvScales(places_, StrCat(prefix_.body, "layers."), config_.num_layers);
  }
  std::vector<StoredWeight> Stored(const WeightRule& rule) const override {
    std::vector<StoredWeight> out;
    for (const TensorPlace& place : PlacesOf(rule))
      out.push_back({place.tensor->type, place.file->Bytes(*place.tensor)});
    return out;
  }
  int64_t Unused(int64_t used) const override {
    for (const WeightRule& rule : WeightRules(config_)) used += static_cast<int64_t>(PlacesOf(rule).size()) - 1;
    used += std::ranges::count_if(places_, [](const auto& place) { return IsKvScale(place.first); });
    return static_cast<int64_t>(places_.size()) - used;
  }
  std::string Origin(const WeightRule& rule, int64_t row, int64_t column) const override;

 private:
  std::string NameOf(const WeightRule& rule) const {
    return StrCat(rule.weight == Weight::kLmHead ? prefix_.head : prefix_.body, HfName(config_, rule));
  }
  // "model.layers.3.mlp.up_proj"
  std::string LayerOf(const WeightRule& rule) const {
    const std::string name = NameOf(rule);
    return name.substr(0, name.rfind('.'));
  }
  const TensorPlace* Find(const std::string& name) const {
    const auto it = places_.find(name);
    return it == places_.end() ? nullptr : &it->second;
  }
  // A layer that has both is read as floats. Of float8 one tensor is either.
  bool InCodes(const WeightRule& rule) const {
    return quantization_ && rule.shape.size() == 2 &&
           (quantization_->format == Quantization::Format::kFloat8 || Find(NameOf(rule)) == nullptr) &&
           HasCodes(*quantization_, LayerOf(rule), [this](const std::string& name) { return Find(name); });
  }
  absl::StatusOr<LayerCodes> CodesOf(const WeightRule& rule) const {
    return OpenCodes(*quantization_, LayerOf(rule), rule.rows(), rule.columns(),
                     [this](const std::string& name) { return Find(name); });
  }
  std::vector<TensorPlace> PlacesOf(const WeightRule& rule) const {
    return InCodes(rule) ? CodesOf(rule)->tensors : std::vector<TensorPlace>{At(rule)};
  }
  absl::Status CheckCodes(const WeightRule& rule) const;
  const TensorPlace& At(const WeightRule& rule) const {
    const TensorPlace* const place = Find(NameOf(rule));
    BATON_CHECK(place != nullptr, NameOf(rule), " was not checked");
    return *place;
  }
  absl::StatusOr<const SafetensorsFile*> OpenFile(const std::string& path);

  const ModelConfig config_;
  const std::optional<Quantization> quantization_;
  Prefix prefix_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, TensorPlace> places_;
};

absl::StatusOr<const SafetensorsFile*> HfWeights::OpenFile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const SafeTensor& tensor : file->tensors()) {
    const auto [it, fresh] = places_.emplace(tensor.name, TensorPlace{file.get(), &tensor});
    if (fresh) continue;
    return absl::InvalidArgumentError(
        StrCat(path, ": ", Quoted(tensor.name), " is in ", it->second.file->name(), " too"));
  }
  files_.push_back(std::move(file));
  return files_.back().get();
}

absl::Status HfWeights::OpenSingle(const std::string& path) { return OpenFile(path).status(); }

absl::Status HfWeights::OpenSharded(const std::string& directory) {
  const std::string path = directory + "/" + kIndexName;
  BATON_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(path, kMaxIndexBytes));
  JsonFields in(json, path);
  const nlohmann::json* map = in.Object("weight_map");
  BATON_RETURN_IF_ERROR(in.status());
  if (map == nullptr || map->empty()) return absl::InvalidArgumentError(StrCat(path, ": weight_map is missing"));
  absl::flat_hash_map<std::string, const SafetensorsFile*> shards;
  for (const auto& [name, value] : map->items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (shard.empty() || shard.find('/') != std::string::npos || shard.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          StrCat(path, ": ", Quoted(name), " is not in a file of this directory: ", ShownJson(value)));
    }
    auto [it, fresh] = shards.emplace(shard, nullptr);
    if (fresh) {
      BATON_ASSIGN_OR_RETURN(it->second, OpenFile(directory + "/" + shard));
    }
    if (it->second->Find(name) == nullptr) {
      return absl::InvalidArgumentError(
          StrCat(path, ": ", Quoted(name), " should be in ", Printable(shard), " and is not"));
    }
  }
  return absl::OkStatus();
}

absl::Status HfWeights::FindPrefix(const std::string& directory) {
  const std::string embedding = HfName(config_, RuleOf(config_, Weight::kEmbedding));
  for (const Prefix& prefix : kPrefixes) {
    if (!places_.contains(StrCat(prefix.body, embedding))) continue;
    prefix_ = prefix;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(directory, ": none of its ", places_.size(), " tensors is model.", embedding));
}

bool HasBias(const ModelConfig& config, Weight weight) {
  switch (weight) {
    case Weight::kQuery:
    case Weight::kKey:
    case Weight::kValue: return config.qkv_bias;
    case Weight::kOutput: return config.o_bias;
    default: return false;
  }
}

// "m.safetensors: model.norm.weight[7] is nan"
std::string NumberText(const TensorPlace& place, int64_t element) {
  const SafeTensor& tensor = *place.tensor;
  const DType type = *DTypeOfSafetensors(tensor.type);
  float value;
  ConvertElements(type, place.file->Bytes(tensor).data() + element * static_cast<int64_t>(DTypeBytes(type)),
                  DType::kF32, &value, 1);
  std::vector<int64_t> at(tensor.shape.size());
  for (size_t axis = at.size(); axis-- > 0; element /= tensor.shape[axis]) at[axis] = element % tensor.shape[axis];
  return StrCat(place.file->name(), ": ", Printable(tensor.name), at.empty() ? "" : ShapeText(at), " is ", value);
}

// Its scale, where that is not finite or too large, else the code.
std::string HfWeights::Origin(const WeightRule& rule, int64_t row, int64_t column) const {
  if (!InCodes(rule)) return NumberText(At(rule), row * rule.columns() + column);
  const LayerCodes layer = *CodesOf(rule);
  const auto holds = [](const uint8_t* data) {
    return [data](const TensorPlace& place) { return place.file->Bytes(*place.tensor).data() == data; };
  };
  if (layer.codes.kind == kernels::CodeKind::kE4m3) {
    uint8_t code;
    layer.codes.codes.ReadRow(row, column, 1, &code);
    const TensorPlace& codes = *std::ranges::find_if(layer.tensors, holds(layer.codes.codes.data));
    if (FirstNotFinite(DType::kF8E4M3, &code, 1) == 0)
      return StrCat(codes.file->name(), ": ", codes.tensor->name, ShapeText({row, column}), " is nan");
  }
  const TensorPlace& scales = *std::ranges::find_if(layer.tensors, holds(layer.codes.scales));
  return StrCat(NumberText(scales, layer.codes.ScaleIndex(row, column)), ", the scale of ", LayerOf(rule),
                ShapeText({row, column}));
}

// Some that write codes give every layer a bias: where the model has none, all of it is to be 0.
absl::Status HfWeights::CheckCodes(const WeightRule& rule) const {
  BATON_RETURN_IF_ERROR(CodesOf(rule).status());
  const std::string name = LayerOf(rule) + ".bias";
  const TensorPlace* const bias = Find(name);
  if (bias == nullptr || HasBias(config_, rule.weight)) return absl::OkStatus();
  const std::optional<DType> type = DTypeOfSafetensors(bias->tensor->type);
  const absl::Span<const uint8_t> bytes = bias->file->Bytes(*bias->tensor);
  std::vector<float> values(type ? bytes.size() / DTypeBytes(*type) : 0);
  if (type) ConvertElements(*type, bytes.data(), DType::kF32, values.data(), static_cast<int64_t>(values.size()));
  if (type && std::ranges::all_of(values, [](float x) { return x == 0.0f; })) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(bias->file->name(), ": ", name, " is not 0, the model has no bias there"));
}

absl::Status HfWeights::Check(const WeightRule& rule) const {
  if (InCodes(rule)) return CheckCodes(rule);
  const std::string name = NameOf(rule);
  const TensorPlace* const place = Find(name);
  if (place == nullptr) {
    const bool codes = Find(LayerOf(rule) + ".qweight") != nullptr || Find(LayerOf(rule) + ".weight_packed") != nullptr;
    return absl::NotFoundError(
        StrCat("tensor ", name, " is missing",
               codes ? ", its codes are there: the config has no quantization_config of them" : ""));
  }
  const SafeTensor& tensor = *place->tensor;
  if (tensor.shape != rule.shape) {
    return absl::InvalidArgumentError(StrCat(place->file->name(), ": ", name, " has shape ", ShapeText(tensor.shape),
                                             ", the config asks for ", ShapeText(rule.shape)));
  }
  if (!DTypeOfSafetensors(tensor.type).has_value()) {
    return absl::InvalidArgumentError(
        StrCat(place->file->name(), ": ", name, " has type ", Printable(tensor.type), " (F32, F16, BF16 are supported",
               tensor.type == "F8_E4M3" ? "; of float8 under a quantization_config" : "", ")"));
  }
  return absl::OkStatus();
}

// model.safetensors, else the only .safetensors file.
absl::StatusOr<std::string> SingleFile(const std::string& directory) {
  std::error_code error;
  if (fs::exists(directory + "/model.safetensors", error)) return directory + "/model.safetensors";
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path().string());
  }
  if (found.size() == 1) return found[0];
  return absl::NotFoundError(
      StrCat(directory, ": no model.safetensors and no ", kIndexName, " (", found.size(), " .safetensors files)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfWeights(const std::string& directory, const ModelConfig& config,
                                                            const std::optional<Quantization>& quantization) {
  auto weights = std::make_unique<HfWeights>(config, quantization);
  std::error_code error;
  if (fs::exists(directory + "/" + kIndexName, error)) {
    BATON_RETURN_IF_ERROR(weights->OpenSharded(directory));
  } else {
    BATON_ASSIGN_OR_RETURN(const std::string path, SingleFile(directory));
    BATON_RETURN_IF_ERROR(weights->OpenSingle(path));
  }
  BATON_RETURN_IF_ERROR(weights->FindPrefix(directory));
  return weights;
}

}  // namespace baton::engine
