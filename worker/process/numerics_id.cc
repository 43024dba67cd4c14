#include "worker/process/numerics_id.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace baton::worker {

NumericsFacts NumericsIdOf(const std::string& model_digest, const kernels::OpsTraits& traits,
                           const engine::RankPlace& place) {
  NumericsFacts f;
  f.compute_dtype = DTypeName(traits.compute);
  f.kv_dtype = DTypeName(traits.kv);
  f.isa = traits.isa;
  f.kernel_version = traits.kernel_version;
  f.reduction_width = static_cast<uint32_t>(place.reduction_width);
  f.tensor_parallel_size = static_cast<uint32_t>(place.tensor_size);
  const uint32_t tp = f.reduction_width < f.tensor_parallel_size ? f.tensor_parallel_size : 0;
  const std::string text = StrCat(model_digest, "|", f.compute_dtype, "|", f.kv_dtype, "|", f.isa, "|",
                                  f.kernel_version, "|", f.reduction_width, "|", tp, "|", f.deterministic);
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  f.id = absl::StrFormat("%016x%016x", h.high64, h.low64);
  return f;
}

}  // namespace baton::worker
