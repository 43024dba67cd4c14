#include "engine/model/model_digest.h"

#include <xxhash.h>

#include <memory>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

constexpr size_t kSmallBytes = 8192;
constexpr size_t kSamples = 16, kSampleBytes = 64;

// Text with its length before it, so that no two lists of texts hash alike.
void Add(XXH3_state_t* state, std::string_view text) {
  const uint64_t size = text.size();
  XXH3_128bits_update(state, &size, sizeof(size));
  XXH3_128bits_update(state, text.data(), text.size());
}

void AddSamples(XXH3_state_t* state, absl::Span<const uint8_t> bytes) {
  Add(state, StrCat(bytes.size()));
  if (bytes.size() <= kSmallBytes) {
    XXH3_128bits_update(state, bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < kSamples; ++i) {
    const size_t at = (bytes.size() - kSampleBytes) / (kSamples - 1) * i;
    XXH3_128bits_update(state, bytes.data() + at, kSampleBytes);
  }
}

}  // namespace

std::string ModelDigest(std::string_view config_text, const ModelConfig& config, const WeightSource& source,
                        const KvScales& kv_scales) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  Add(state.get(), "baton model 1");
  Add(state.get(), config_text);
  for (const WeightRule& rule : WeightRules(config)) {
    Add(state.get(), HfName(config, rule));
    for (const StoredWeight& stored : source.Stored(rule)) {
      Add(state.get(), stored.type);
      Add(state.get(), ShapeText(rule.shape));
      AddSamples(state.get(), stored.bytes);
    }
  }
  if (!kv_scales.keys.empty()) {  // what KV in e4m3 means
    Add(state.get(), "kv scales");
    for (const std::vector<float>& scales : {kv_scales.keys, kv_scales.values})
      Add(state.get(), {reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float)});
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace baton::engine
