#include "worker/worker_config.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "absl/strings/str_join.h"
#include "common/config_fields.h"
#include "common/status.h"
#include "kvtransfer/transports/transports.h"

namespace baton::worker {
namespace {

absl::Status Bad(std::string_view flag, const auto& value, std::string_view want) {
  return absl::InvalidArgumentError(StrCat("--", flag, " ", value, ": ", want));
}

}  // namespace

std::optional<DType> WorkerConfig::KvCacheDType() const {
  if (kv_cache_dtype == "bfloat16") return DType::kBF16;
  if (kv_cache_dtype == "float32") return DType::kF32;
  if (kv_cache_dtype == "float16") return DType::kF16;
  if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3") return DType::kF8E4M3;
  return std::nullopt;
}

std::string WorkerConfig::Name(int port) const {
  if (!worker_id.empty()) return worker_id;
  return port == 0 ? role : StrCat(role, "@", port);
}

absl::Status WorkerConfig::Validate() const {
  if (model.empty()) return absl::InvalidArgumentError("--model is missing: an HF directory or a .gguf file");
  if (role != "both" && role != "prefill" && role != "decode")
    return Bad("role", role, "must be both, prefill or decode");
  const auto in_names = [](char c) { return c > ' ' && c < 127 && c != '"' && c != '[' && c != ']'; };
  if (worker_id.size() > 64 || !std::ranges::all_of(worker_id, in_names))
    return absl::InvalidArgumentError("--worker-id: at most 64 printable characters, no space, quote or bracket");
  if (port < 0 || port > 65535) return Bad("port", port, "must be 0…65535");
  if (load_format != "auto" && load_format != "dummy") return Bad("load-format", load_format, "must be auto or dummy");
  if (dtype != "auto" && dtype != "bfloat16" && dtype != "float32")
    return Bad("dtype", dtype, "must be auto, bfloat16 or float32");
  if (device != "cpu" && device != "cuda") return Bad("device", device, "must be cpu or cuda");
  if (device == "cuda" && ranks() != 1)
    return Bad("device", device, "one rank: no tensor or pipeline parallelism on GPUs yet");
  if (device == "cuda" && dtype == "float32") return Bad("dtype", dtype, "a GPU computes in bfloat16");
  if (kv_cache_dtype != "auto" && !KvCacheDType())
    return Bad("kv-cache-dtype", kv_cache_dtype, "must be auto, bfloat16, float32, float16 or fp8");
  if (device == "cuda" && (KvCacheDType() == DType::kF32 || KvCacheDType() == DType::kF16))
    return Bad("kv-cache-dtype", kv_cache_dtype, "a GPU keeps KV in bfloat16 or fp8");
  if (max_model_len < 0) return Bad("max-model-len", max_model_len, "must be ≥ 0");
  const auto is_power = [](int32_t n) { return n >= 1 && n <= 256 && std::has_single_bit(static_cast<uint32_t>(n)); };
  if (!is_power(tensor_parallel_size))
    return Bad("tensor-parallel-size", tensor_parallel_size, "must be a power of two, 1…256");
  if (!is_power(reduction_width)) return Bad("reduction-width", reduction_width, "must be a power of two, 1…256");
  if (pipeline_parallel_size < 1 || pipeline_parallel_size > 256)
    return Bad("pipeline-parallel-size", pipeline_parallel_size, "must be 1…256");
  if (distributed_executor_backend != "threads" && distributed_executor_backend != "mp")
    return Bad("distributed-executor-backend", distributed_executor_backend, "must be threads or mp");
  if (rank_timeout_ms < 1000) return Bad("rank-timeout-ms", rank_timeout_ms, "must be ≥ 1000");
  if (kv_cache_memory < 0) return Bad("kv-cache-memory", kv_cache_memory, "must be ≥ 0");
  if (local_workers < 1) return Bad("local-workers", local_workers, "must be ≥ 1");
  if (block_size < 16 || block_size % 16 != 0 || block_size > 1024)
    return Bad("block-size", block_size, "must be a multiple of 16, ≤ 1024");
  if (max_num_seqs < 1 || max_num_seqs > 65536) return Bad("max-num-seqs", max_num_seqs, "must be 1…65536");
  if (max_num_batched_tokens < 1) return Bad("max-num-batched-tokens", max_num_batched_tokens, "must be ≥ 1");
  if (max_step_ms < 0) return Bad("max-step-ms", max_step_ms, "must be ≥ 0");
  if (max_stall_ms < 0) return Bad("max-stall-ms", max_stall_ms, "must be ≥ 0");
  if (max_waiting_requests < 1) return Bad("max-waiting-requests", max_waiting_requests, "must be ≥ 1");
  if (max_waiting_tokens < 1) return Bad("max-waiting-tokens", max_waiting_tokens, "must be ≥ 1");
  if (threads < 0 || threads > 1024) return Bad("threads", threads, "must be 0…1024");
  if (const std::vector<std::string> known = TransportFlags(); std::ranges::find(known, transport) == known.end())
    return Bad("transport", transport, "must be one of " + absl::StrJoin(known, ", "));
  if (landing_port < 0 || landing_port > 65535) return Bad("landing-port", landing_port, "must be 0…65535");
  if (landing_slots < 2 || landing_slots > 4096) return Bad("landing-slots", landing_slots, "must be 2…4096");
  if (landing_slot_bytes < 65536 || landing_slot_bytes > 64 << 20) {
    return Bad("landing-slot-bytes", landing_slot_bytes, "must be 64 KiB…64 MiB");
  }
  if (test_kv_fault_rate < 0 || test_kv_fault_rate > 1)
    return Bad("test-kv-fault-rate", test_kv_fault_rate, "must be 0…1");
  if (!IsLogLevel(log_level)) return Bad("log-level", log_level, "must be debug, info, warning or error");
  if (!IsLogFormat(log_format)) return Bad("log-format", log_format, "must be text or json");
  if (router_timeout_ms < 1000) return Bad("router-timeout-ms", router_timeout_ms, "must be ≥ 1000");
  return absl::OkStatus();
}

}  // namespace baton::worker
