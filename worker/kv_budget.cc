#include "worker/kv_budget.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace baton::worker {

int64_t AvailableMemoryBytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string name, rest; in >> name;) {
    int64_t kb = 0;
    if (name == "MemAvailable:" && in >> kb) return kb * 1024;
    std::getline(in, rest);
  }
  return 0;
}

int64_t KvBytes(const WorkerConfig& config, const KvLayout& layout, int64_t max_model_len, int64_t available_bytes) {
  if (config.kv_cache_memory > 0) return config.kv_cache_memory;
  // One block more per sequence: a sequence rarely ends on a block's end. The digests take 8 bytes per unit, head and plane.
  const int64_t tokens = (max_model_len + config.block_size) * config.max_num_seqs;
  int64_t per_token = 0;
  for (const KvGroup& g : layout.groups) {
    for (const KvPlane& p : g.planes) {
      per_token += static_cast<int64_t>(g.layers.size()) * p.heads * (p.BytesPerTokenHead() + 1);
    }
  }
  return std::min(tokens * per_token, available_bytes * 2 / 5 / config.local_workers);
}

}  // namespace baton::worker
