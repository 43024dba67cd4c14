#include "engine/model/files/kv_scales.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/foreign_text.h"
#include "common/status.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

/// What a writer of checkpoints calls them, after "model.layers.3.".
struct ScaleName {
  std::string_view name;
  bool keys, values;
};
constexpr ScaleName kScaleNames[] = {
    {"self_attn.k_scale", true, false},
    {"self_attn.v_scale", false, true},
    {"self_attn.attn.k_scale", true, false},
    {"self_attn.attn.v_scale", false, true},
    {"self_attn.k_proj.k_scale", true, false},
    {"self_attn.v_proj.v_scale", false, true},
    {"self_attn.k_proj.output_scale", true, false},
    {"self_attn.v_proj.output_scale", false, true},
    {"self_attn.kv_scale", true, true},
};
constexpr std::string_view kEnds[] = {".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale",
                                      ".v_proj.output_scale"};
/// Such that 1 / scale and 448 · scale are numbers, too.
constexpr float kLeast = 1e-30f, kMost = 1e30f;

struct Named {
  std::string name;
  float scale;
};
using Found = std::optional<Named>;

/// The layer that "model.layers.3.self_attn.k_scale" is of, and what follows; none: of no layer of the decoder.
std::optional<std::pair<int, std::string_view>> LayerOf(std::string_view name, std::string_view layers,
                                                        int num_layers) {
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  int layer = -1;
  const char* const end = name.data() + name.size();
  const auto [dot, error] = std::from_chars(name.data(), end, layer);
  if (error != std::errc() || dot == end || *dot != '.' || layer < 0 || layer >= num_layers) return std::nullopt;
  return std::pair(layer, std::string_view(dot + 1, end));
}

absl::StatusOr<float> ScaleIn(const TensorPlace& place, const std::string& where) {
  const std::optional<DType> type = DTypeOfSafetensors(place.tensor->type);
  if (!type) return absl::InvalidArgumentError(StrCat(where, " has type ", Printable(place.tensor->type)));
  const absl::Span<const uint8_t> bytes = place.file->Bytes(*place.tensor);
  std::vector<float> values(bytes.size() / DTypeBytes(*type));
  ConvertElements(*type, bytes.data(), DType::kF32, values.data(), static_cast<int64_t>(values.size()));
  if (values.empty()) return absl::InvalidArgumentError(StrCat(where, " has no number"));
  for (const float value : values) {
    if (!(value >= kLeast && value <= kMost)) {
      return absl::InvalidArgumentError(
          StrCat(where, " is ", value, ": a scale of KV is a number above 0, from ", kLeast, " to ", kMost));
    }
    if (value != values[0]) {
      return absl::InvalidArgumentError(StrCat(where, " has ", values.size(), " numbers, ", values[0], " and ", value,
                                               " among them: one for all heads is served"));
    }
  }
  return values[0];
}

absl::Status Put(const std::string& name, float scale, Found& to) {
  if (to && to->scale != scale) {
    return absl::InvalidArgumentError(
        StrCat(Printable(to->name), " is ", to->scale, " and ", Printable(name), " is ", scale));
  }
  to = Named{name, scale};
  return absl::OkStatus();
}

}  // namespace

bool IsKvScale(std::string_view name) {
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

absl::StatusOr<KvScales> FindKvScales(const absl::flat_hash_map<std::string, TensorPlace>& places,
                                      std::string_view layers, int num_layers) {
  std::map<std::string, TensorPlace> of_kv;  // in one order, so that there is one first mistake
  for (const auto& [name, place] : places) {
    if (IsKvScale(name)) of_kv[name] = place;
  }
  std::vector<Found> keys(static_cast<size_t>(num_layers)), values = keys;
  for (const auto& [name, place] : of_kv) {
    const auto at = LayerOf(name, layers, num_layers);
    if (!at) continue;
    const std::string where = Printable(name);
    const auto known = std::ranges::find(kScaleNames, at->second, &ScaleName::name);
    if (known == std::end(kScaleNames))
      return absl::InvalidArgumentError(StrCat(where, " is a scale of KV under a name that is not known"));
    BATON_ASSIGN_OR_RETURN(const float scale, ScaleIn(place, where));
    const auto layer = static_cast<size_t>(at->first);
    if (known->keys) BATON_RETURN_IF_ERROR(Put(name, scale, keys[layer]));
    if (known->values) BATON_RETURN_IF_ERROR(Put(name, scale, values[layer]));
  }
  KvScales out;
  bool all_one = true;
  for (size_t layer = 0; layer < keys.size(); ++layer) {
    const Found &key = keys[layer], &value = values[layer];
    if (key.has_value() != value.has_value()) {
      const Named& alone = key ? *key : *value;
      return absl::InvalidArgumentError(StrCat(Printable(alone.name), " is ", alone.scale,
                                               " and there is no scale of the ", key ? "values" : "keys", " of layer ",
                                               layer));
    }
    out.keys.push_back(key ? key->scale : 1.0f);
    out.values.push_back(value ? value->scale : 1.0f);
    all_one = all_one && out.keys.back() == 1.0f && out.values.back() == 1.0f;
  }
  return all_one ? KvScales{} : out;
}

}  // namespace baton::engine
