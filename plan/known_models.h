// The published shapes of well-known models, so that one can be planned without its files: what its config.json says.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/model/config/model_config.h"

namespace baton::plan {

struct KnownModel {
  std::string_view name;
  std::string_view family;  ///< model_type
  int hidden = 0, inner = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, context = 0;
  bool tied = false;
  int window = 0;  ///< of its sliding layers
};

std::span<const KnownModel> KnownModels();
/// As a config.json.
std::string ConfigJson(const KnownModel& model);
/// `text`: a name of KnownModels, or "layers=32,hidden=4096,heads=32,kv-heads=8,inner=14336,vocab=128256" and, where
/// they are not the usual ones, head-dim, context and tied (0 or 1); a llama. InvalidArgument names what is wrong.
absl::StatusOr<KnownModel> ShapeOf(std::string_view text);

/// One row for each model: parameters, bytes of KV a token, and tokens in a GiB of it, in that type.
std::string KvTable(DType kv_dtype);

}  // namespace baton::plan
