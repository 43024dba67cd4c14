// Weights of an HF directory: one safetensors file, or shards named by an index.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "engine/model/config/json_fields.h"
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
  explicit HfWeights(const ModelConfig& config) : config_(config) {}
  absl::Status OpenSharded(const std::string& directory);
  absl::Status OpenSingle(const std::string& path);
  absl::Status FindPrefix(const std::string& directory);

  absl::Status Check(const WeightRule& rule) const override;
  DType NativeType(const WeightRule& rule) const override { return *DTypeOfSafetensors(At(rule).tensor->type); }
  void ReadRows(const WeightRule& rule, int64_t first, int64_t count, DType type, void* out) const override {
    const DType native = NativeType(rule);
    const int64_t skipped = first * rule.columns() * static_cast<int64_t>(DTypeBytes(native));
    ConvertElements(native, Stored(rule).bytes.data() + skipped, type, out, count * rule.columns());
  }
  // Touches the bytes of the part alone.
  void ReadPart(const WeightPart& part, int64_t first, int64_t count, DType type, void* out) const override {
    const DType native = NativeType(part.rule);
    const int64_t from_bytes = static_cast<int64_t>(DTypeBytes(native)),
                  to_bytes = static_cast<int64_t>(DTypeBytes(type));
    const uint8_t* data = Stored(part.rule).bytes.data();
    for (int64_t r = 0; r < count; ++r) {
      const int64_t element = (part.first_row + first + r) * part.rule.columns() + part.first_column;
      ConvertElements(native, data + element * from_bytes, type, static_cast<char*>(out) + r * part.columns * to_bytes,
                      part.columns);
    }
  }
  StoredWeight Stored(const WeightRule& rule) const override {
    const Place& place = At(rule);
    return {place.tensor->type, place.file->Bytes(*place.tensor)};
  }
  int64_t Unused(int64_t used) const override { return static_cast<int64_t>(places_.size()) - used; }

 private:
  struct Place {
    const SafetensorsFile* file;
    const SafeTensor* tensor;
  };
  std::string NameOf(const WeightRule& rule) const {
    return StrCat(rule.weight == Weight::kLmHead ? prefix_.head : prefix_.body, HfName(config_, rule));
  }
  const Place& At(const WeightRule& rule) const {
    const auto it = places_.find(NameOf(rule));
    BATON_CHECK(it != places_.end(), NameOf(rule), " was not checked");
    return it->second;
  }
  absl::StatusOr<const SafetensorsFile*> OpenFile(const std::string& path);

  const ModelConfig config_;
  Prefix prefix_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, Place> places_;
};

absl::StatusOr<const SafetensorsFile*> HfWeights::OpenFile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const SafeTensor& tensor : file->tensors()) {
    const auto [it, fresh] = places_.emplace(tensor.name, Place{file.get(), &tensor});
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

absl::Status HfWeights::Check(const WeightRule& rule) const {
  const std::string name = NameOf(rule);
  const auto it = places_.find(name);
  if (it == places_.end()) return absl::NotFoundError(StrCat("tensor ", name, " is missing"));
  const SafeTensor& tensor = *it->second.tensor;
  if (tensor.shape != rule.shape) {
    return absl::InvalidArgumentError(StrCat(it->second.file->name(), ": ", name, " has shape ",
                                             ShapeText(tensor.shape), ", the config asks for ", ShapeText(rule.shape)));
  }
  if (!DTypeOfSafetensors(tensor.type).has_value()) {
    return absl::InvalidArgumentError(StrCat(it->second.file->name(), ": ", name, " has type ", Printable(tensor.type),
                                             " (F32, F16, BF16 are supported)"));
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

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfWeights(const std::string& directory, const ModelConfig& config) {
  auto weights = std::make_unique<HfWeights>(config);
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
