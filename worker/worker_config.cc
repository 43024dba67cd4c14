#include "worker/worker_config.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "common/config_fields.h"
#include "common/net/address.h"
#include "common/status.h"
#include "kvtransfer/transports/transports.h"

namespace baton::worker {
namespace {

absl::Status Bad(std::string_view flag, std::string_view value, std::string_view want) {
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

std::optional<std::vector<int>> WorkerConfig::CudaDevices() const {
  constexpr std::string_view kKind = "cuda";
  if (device == kKind) return std::vector<int>{0};
  if (!device.starts_with(kKind) || device.size() < kKind.size() + 2 || device[kKind.size()] != ':')
    return std::nullopt;
  std::vector<int> numbers;
  const char *at = device.data() + kKind.size() + 1, *const end = device.data() + device.size();
  for (;; ++at) {
    int number = -1;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0 || number > 1023 || (next != end && *next != ',')) return std::nullopt;
    numbers.push_back(number);
    if (at = next; at == end) return numbers;
  }
}

int WorkerConfig::CudaDeviceOf(int rank) const {
  const std::vector<int> numbers = CudaDevices().value_or(std::vector<int>{0});
  const int local = rank - first_local_rank();
  return numbers.size() == 1 ? numbers[0] + local : numbers[static_cast<size_t>(local)];
}

std::optional<std::vector<int32_t>> WorkerConfig::RecordedRows() const {
  constexpr int32_t kMost = 256;
  const int32_t most = std::min(max_num_seqs, max_num_batched_tokens);
  std::vector<int32_t> rows;
  if (enforce_eager) return rows;
  if (cuda_graph_sizes == "auto") {
    const int32_t last = std::min(most, kMost);
    for (int32_t n = 1; n < last; n *= 2) rows.push_back(n);
    rows.push_back(last);
    return rows;
  }
  const char *at = cuda_graph_sizes.data(), *const end = at + cuda_graph_sizes.size();
  for (;; ++at) {
    int32_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || (next != end && *next != ',')) return std::nullopt;
    if (n <= most) rows.push_back(n);
    if (at = next; at == end) break;
  }
  std::ranges::sort(rows);
  rows.erase(std::ranges::unique(rows).begin(), rows.end());
  return rows;
}

std::string WorkerConfig::Name(int port) const {
  if (!worker_id.empty()) return worker_id;
  return port == 0 ? role : StrCat(role, "@", port);
}

FieldRule WorkerIdRule() {
  FieldRule rule;
  rule.text = "at most 64 printable characters, no space, quote or bracket";
  rule.takes_text = [](std::string_view id) {
    const auto fits = [](char c) { return c > ' ' && c < 127 && c != '"' && c != '[' && c != ']'; };
    return id.size() <= 64 && std::ranges::all_of(id, fits);
  };
  return rule;
}

FieldRule DeviceRule() {
  FieldRule rule;
  rule.text = "cpu, cuda, cuda:N or cuda:N,M,…";
  rule.takes_text = [](std::string_view device) {
    WorkerConfig config;
    config.device = device;
    return device == "cpu" || config.on_gpu();
  };
  return rule;
}

FieldRule GraphSizesRule() {
  FieldRule rule;
  rule.text = "auto, or numbers from 1 on with commas between";
  rule.takes_text = [](std::string_view sizes) {
    WorkerConfig config;
    config.cuda_graph_sizes = sizes;
    return config.RecordedRows().has_value();
  };
  return rule;
}

FieldRule LandingSlotBytesRule() {
  FieldRule rule = Range(64 << 10, 64 << 20);
  rule.text = rule.help = StrCat("0 or ", rule.text);
  rule.takes_number = [given = rule.takes_number](double x) { return x == 0 || given(x); };
  return rule;
}

FieldRule TransportRule() {
  std::vector<FieldChoice> kinds;
  for (const std::string& name : TransportFlags()) kinds.push_back({name});
  return OneOf(kinds);
}

absl::Status CheckNodes(const WorkerConfig& c) {
  if (c.node_rank >= c.nnodes)
    return Bad("node-rank", StrCat(c.node_rank), StrCat("must be less than --nnodes ", c.nnodes));
  if (c.nnodes == 1) return absl::OkStatus();
  if (c.ranks() % c.nnodes != 0)
    return Bad("nnodes", StrCat(c.nnodes),
               StrCat("must be a divisor of the worker's ", c.ranks(), " ranks (--tensor-parallel-size ",
                      c.tensor_parallel_size, " × --pipeline-parallel-size ", c.pipeline_parallel_size, ")"));
  if (c.master_addr.empty())
    return Bad("master-addr", "", "must be machine 0's host name or address, with --nnodes above 1");
  if (c.cluster_secret_file.empty())
    return Bad("cluster-secret-file", "", "must be given with --nnodes above 1: ranks come over the network");
  return absl::OkStatus();
}

absl::Status CheckPrefills(const WorkerConfig& c) {
  const int32_t all = c.max_num_partial_prefills, longer = c.max_long_partial_prefills;
  if (all > 0 && longer > all)
    return Bad("max-long-partial-prefills", StrCat(longer), StrCat("must be at most --max-num-partial-prefills ", all));
  if (longer > 0 && all <= 1 && c.long_prefill_token_threshold == 0 && !(longer == 1 && all == 1))
    return Bad("max-long-partial-prefills", StrCat(longer),
               "needs --long-prefill-token-threshold, which says what a long prompt is");
  return absl::OkStatus();
}

absl::Status CheckTexts(const WorkerConfig& c) {
  if (c.skip_tokenizer_init && !c.tokenizer.empty())
    return Bad("tokenizer", c.tokenizer, "is not read with --skip-tokenizer-init: leave one of them out");
  return absl::OkStatus();
}

bool WorkerConfig::kv_by_ucx() const { return !kv_tls && (kv_trusted_network || insecure || net::IsLoopback(host)); }

absl::Status WorkerConfig::Validate() const {
  BATON_RETURN_IF_ERROR(CheckFields(*this));
  BATON_RETURN_IF_ERROR(tls::CheckFlags(tls_files, tls::Needs::kBoth));
  BATON_RETURN_IF_ERROR(CheckNodes(*this));
  BATON_RETURN_IF_ERROR(CheckPrefills(*this));
  BATON_RETURN_IF_ERROR(CheckTexts(*this));
  if (kv_tls && tls_files.ca.empty())
    return Bad("kv-tls", "true", "needs --tls-cert, --tls-key and --tls-ca: both ends show a certificate");
  if (kv_tls && (require_rdma || transport.starts_with("ucx")))
    return Bad("kv-tls", "true", "is not for UCX and RDMA, which do not encrypt: --transport auto, shm or tcp");
  if (ranks_carry_kv() && landing_port > 0 && landing_port + local_ranks() - 1 > 65535)
    return Bad("landing-port", StrCat(landing_port),
               StrCat("the ", local_ranks(), " rank processes of this machine take one port each, up to 65535"));
  const std::optional<std::vector<int>> gpus = CudaDevices();
  if (!gpus.has_value()) {
    if (!deterministic) return Bad("deterministic", "false", "answers of a CPU never depend on what runs beside them");
    return absl::OkStatus();
  }
  if (gpus->size() > 1 && static_cast<int>(gpus->size()) != local_ranks())
    return Bad("device", device, StrCat(gpus->size(), " GPUs for this machine's ", local_ranks(), " ranks"));
  if (dtype == "float32") return Bad("dtype", dtype, "a GPU computes in bfloat16");
  if (KvCacheDType() == DType::kF32 || KvCacheDType() == DType::kF16)
    return Bad("kv-cache-dtype", kv_cache_dtype, "a GPU keeps KV in bfloat16 or fp8");
  return absl::OkStatus();
}

}  // namespace baton::worker
