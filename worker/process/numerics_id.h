// The facts that decide the bits of an answer, as one id: equal ids, equal bytes (Promise A).
#pragma once

#include <string>

#include "engine/parallel/rank_place.h"
#include "kernels/ops.h"

namespace baton::worker {

struct NumericsFacts {
  std::string id;  ///< 32 hex digits over everything below and the model's digest
  std::string compute_dtype, kv_dtype, isa, kernel_version;
  uint32_t reduction_width = 1;
  uint32_t tensor_parallel_size = 1;
  bool deterministic = true;
};

NumericsFacts NumericsIdOf(const std::string& model_digest, const kernels::OpsTraits& traits,
                           const engine::RankPlace& place);

}  // namespace baton::worker
