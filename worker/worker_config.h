// WorkerConfig: everything an operator can set on a worker. One struct; VisitFields names each field once, with
// what it may be, which gives flags, environment, YAML, --help and the checks (common/config_fields.h). Names are
// vLLM's where vLLM has the flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config_fields.h"
#include "common/dtype.h"
#include "common/tls/tls_files.h"

namespace baton::worker {

/// What --landing-slot-bytes 0 is. On a GPU a slot costs some 25 µs beside its bytes (kernels/cuda/host/kv_mover.h), so
/// it has more of them. Workers of both kinds hand over to each other: a slot is filled as far as both sides' allow,
/// and no segment is longer than the smaller of these (decode_worker/piece_tokens.h).
inline constexpr int64_t kCpuLandingSlotBytes = 1 << 20, kGpuLandingSlotBytes = 4 << 20;

struct WorkerConfig {
  // ---- identity
  std::string role = "both";
  std::string host = "127.0.0.1";
  std::string advertise_host;
  int32_t port = 0;
  int32_t status_port = -1;
  std::string worker_id;
  bool insecure = false;

  // ---- TLS
  tls::TlsFiles tls_files;
  std::string tls_server_name = "baton-worker";
  std::string cluster_secret_file;

  // ---- model
  std::string model;
  std::string tokenizer;
  bool skip_tokenizer_init = false;
  std::string hf_config_path;
  std::string hf_overrides;
  std::string rope_scaling;
  double rope_theta = 0;
  std::vector<std::string> served_model_name;
  std::string load_format = "auto";
  std::string dtype = "auto";
  std::string device = "cpu";
  std::string device_plugin;
  bool deterministic = true;
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;
  std::string cuda_graph_sizes = "auto";
  uint64_t seed = 0;
  int64_t max_model_len = 0;

  // ---- ranks
  int32_t tensor_parallel_size = 1;
  int32_t pipeline_parallel_size = 1;
  int32_t reduction_width = 1;
  std::string distributed_executor_backend = "threads";
  int32_t rank_timeout_ms = 60000;
  int32_t rank_start_timeout_ms = 300000;
  int64_t one_shot_sum_bytes = 256 << 10;
  int32_t nnodes = 1;
  int32_t node_rank = 0;
  std::string master_addr;
  int32_t master_port = 29501;

  // ---- KV memory
  std::string kv_cache_dtype = "auto";
  int64_t kv_cache_memory = 0;
  int32_t local_workers = 1;
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  std::string hash_key_file;

  // ---- steps
  std::optional<bool> async_scheduling;
  int32_t max_num_seqs = 128;
  int32_t max_num_batched_tokens = 2048;
  int32_t long_prefill_token_threshold = 0;
  int32_t max_num_partial_prefills = 0;
  int32_t max_long_partial_prefills = 0;
  double max_step_ms = 200;
  double max_stall_ms = 80;
  int32_t max_waiting_requests = 1024;
  int64_t max_waiting_tokens = 1 << 20;
  int32_t threads = 0;

  // ---- handoff
  std::string transport = "auto";
  bool require_rdma = false;
  bool kv_trusted_network = false;
  bool kv_tls = false;
  bool kv_kernel_tls = true;
  bool kv_cuda_ipc = true;
  int32_t landing_port = 0;
  int32_t landing_slots = 32;
  int64_t landing_slot_bytes = 0;
  double test_kv_fault_rate = 0;
  std::string test_failing_transport;
  int32_t test_leaked_blocks = 0;

  // ---- streams
  int32_t router_timeout_ms = 5000;
  int32_t shutdown_timeout_ms = 30000;
  std::string log_level = "info";
  std::string log_format = "text";

  /// The numbers of the GPUs that `device` names, of which this machine's ranks have one each: one number is the first
  /// rank's, and the others follow it. Unset: it names none.
  std::optional<std::vector<int>> CudaDevices() const;
  bool on_gpu() const { return CudaDevices().has_value(); }
  /// A step is given to the engine while the one before it runs.
  bool steps_ahead() const { return async_scheduling.value_or(on_gpu()); }
  /// What `landing_slot_bytes` says, or is by the device.
  int64_t LandingSlotBytes() const {
    if (landing_slot_bytes > 0) return landing_slot_bytes;
    return on_gpu() ? kGpuLandingSlotBytes : kCpuLandingSlotBytes;
  }
  /// The number of the GPU of a rank of this machine.
  int CudaDeviceOf(int rank) const;
  /// What `enforce_eager` and `cuda_graph_sizes` say, ascending, none beyond a step's limits; unset: no list of
  /// numbers.
  std::optional<std::vector<int32_t>> RecordedRows() const;
  /// What `kv_cache_dtype` names; unset: auto, or no type.
  std::optional<DType> KvCacheDType() const;
  /// What this worker is called, listening on `port`; 0: not yet known.
  std::string Name(int port) const;
  int32_t ranks() const { return tensor_parallel_size * pipeline_parallel_size; }
  /// Those that run on each machine: [node_rank · local_ranks, …). Of a config that Validate takes.
  int32_t local_ranks() const { return ranks() > nnodes ? ranks() / nnodes : 1; }
  int32_t first_local_rank() const { return node_rank * local_ranks(); }
  /// Ranks of several processes, which each hand over the KV that they keep.
  bool ranks_are_processes() const { return nnodes > 1 || (ranks() > 1 && distributed_executor_backend == "mp"); }
  /// Whether KV may go by UCX: not where it must be encrypted, and off loopback on a trusted network only.
  bool kv_by_ucx() const;
  bool ranks_carry_kv() const { return role != "both" && ranks_are_processes(); }
  /// The bytes of a buffer through which a rank's GPU lends its KV to others of the machine, or takes theirs; 0: it
  /// does neither. Of ranks that are threads each has a part of every slot only.
  int64_t LentSlotBytes() const {
    const bool lends = role != "both" && kv_cuda_ipc && (ranks() == 1 || ranks_carry_kv());
    return lends ? LandingSlotBytes() : 0;
  }
  /// Where a rank of this machine takes KV: its first at --landing-port, the next at the next port; 0: any.
  int32_t LandingPortOf(int rank) const { return landing_port == 0 ? 0 : landing_port + rank - first_local_rank(); }

  /// InvalidArgument naming the flag, its value and what it may be.
  absl::Status Validate() const;
};

/// No time among the fields is longer, ms.
inline constexpr double kLongestWaitMs = 24 * 3600 * 1000;

/// What --worker-id may be: it stands in log lines, labels and listings.
FieldRule WorkerIdRule();
/// What --device may be.
FieldRule DeviceRule();
/// What --cuda-graph-sizes may be.
FieldRule GraphSizesRule();
/// What --landing-slot-bytes may be.
FieldRule LandingSlotBytesRule();
/// What --transport may be: every kind there is (kvtransfer/transports/).
FieldRule TransportRule();

template <class Visitor>
void VisitModelFields(WorkerConfig& c, Visitor& field) {
  field("role", c.role, "", "",
        OneOf({{"both", "prefills and decodes"},
               {"prefill", "computes prompts and hands their KV over"},
               {"decode", "takes KV and decodes"}}));
  field("host", c.host, "", "address that gRPC and landing bind; :: is IPv6 and IPv4");
  field("advertise-host", c.advertise_host, "", "host that routers and prefill workers are told (--host)");
  field("port", c.port, "port", "gRPC; 0 = any free port (printed)", Range(0, 65535));
  field("status-port", c.status_port, "port",
        "HTTP for probes and scrapes of this machine: /live, /ready, /metrics; 0 = any free port, -1 = none",
        Range(-1, 65535));
  field("worker-id", c.worker_id, "", "stable name of this worker, in log lines and for routers (role@port)",
        WorkerIdRule());
  field("insecure", c.insecure, "", "allow a non-loopback bind without TLS or without the cluster secret");
  tls::VisitFields(c.tls_files, field);
  field("tls-server-name", c.tls_server_name, "",
        "what the certificate of a worker or rank that is dialled by IP address proves instead of that address");
  field("cluster-secret-file", c.cluster_secret_file, "",
        "what the processes of one cluster prove to each other that they know: 32 to 4096 bytes, not readable by all");
  field("model", c.model, "", "HF directory or .gguf file", NotEmpty("an HF directory or a .gguf file"));
  field("tokenizer", c.tokenizer, "", "HF directory or .gguf file whose tokens grammars see (--model's own)");
  field("skip-tokenizer-init", c.skip_tokenizer_init, "",
        "read no tokenizer: requests and answers are token ids, and there are no structured outputs");
  field("hf-config-path", c.hf_config_path, "",
        "HF directory whose config.json and generation_config.json are read in place of the model's; of a GGUF file "
        "its metadata then says only how its tensors are kept");
  field("hf-overrides", c.hf_overrides, "",
        "a JSON object whose fields stand over those of config.json, or of the GGUF file");
  field("rope-scaling", c.rope_scaling, "", "a JSON object in place of config.json's rope_scaling");
  field("rope-theta", c.rope_theta, "", "in place of config.json's rope_theta; 0 = that", AtLeast(0));
  field("served-model-name", c.served_model_name, "", "name that the handshake reports; the first counts");
  field("load-format", c.load_format, "", "where the weights come from",
        OneOf({{"auto"}, {"dummy", "random weights from config.json alone"}}));
  field("dtype", c.dtype, "",
        "what is computed in; auto = bfloat16 where the device multiplies it (CPU: AVX512_BF16, AMX), else float32",
        OneOf({{"auto"}, {"bfloat16"}, {"float32"}}));
  field(
      "device", c.device, "",
      "what computes: cpu | cuda, cuda:N = one NVIDIA GPU for each rank of this machine, from the first or that number "
      "on, through a plugin | cuda:N,M,… = those of these numbers",
      DeviceRule());
  field("device-plugin", c.device_plugin, "", "the device's library; default: libbaton_cuda.so beside this program");
  field("deterministic", c.deterministic, "",
        "on a GPU, an answer's bits do not depend on what runs beside it; false = the fastest kernel for each batch (a "
        "CPU's answers never depend on it)");
  field("gpu-memory-utilization", c.gpu_memory_utilization, "share",
        "of the GPU memory that is free beside weights and what steps need: taken for KV, unless kv-cache-memory is "
        "given; the rest stays for the driver, which loads kernels at their first use",
        Range(0.01, 1));
  field("enforce-eager", c.enforce_eager, "", "on a GPU, launch every kernel of every step; record no steps");
  field("cuda-graph-sizes", c.cuda_graph_sizes, "",
        "numbers of sequences for which a step of decodes is recorded at the start; a step of fewer is padded to the "
        "next, one of more is not recorded; auto = 1, 2, 4, 8 … and max-num-seqs, at most 256",
        GraphSizesRule());
  field("seed", c.seed, "", "of dummy weights");
  field("max-model-len", c.max_model_len, "tokens", "longest prompt and answer together; 0 = the model's", AtLeast(0));
}

template <class Visitor>
void VisitRankFields(WorkerConfig& c, Visitor& field) {
  field("tensor-parallel-size", c.tensor_parallel_size, "ranks",
        "ranks that share every layer (heads, inner width, vocabulary)", PowerOfTwo(1, 256));
  field("pipeline-parallel-size", c.pipeline_parallel_size, "stages", "runs of layers, each on ranks of its own",
        Range(1, 256));
  field("reduction-width", c.reduction_width, "parts",
        "parts in which sums over ranks are taken, at tensor-parallel-size 1 too: workers with the same width ≥ every "
        "tensor-parallel-size answer bit for bit alike",
        PowerOfTwo(1, 256));
  field("distributed-executor-backend", c.distributed_executor_backend, "", "what ranks are",
        OneOf({{"threads", "of the worker"}, {"mp", "processes that it starts"}}));
  field("rank-timeout-ms", c.rank_timeout_ms, "ms",
        "a rank process that does not answer for so long within a step is lost, and the worker ends",
        Range(1000, kLongestWaitMs));
  field("rank-start-timeout-ms", c.rank_start_timeout_ms, "ms",
        "ranks that start, and of which none moves for so long (reads, computes, answers), are lost, and the worker "
        "ends; loading may take longer",
        Range(1000, kLongestWaitMs));
  field("one-shot-sum-bytes", c.one_shot_sum_bytes, "bytes",
        "sums over GPUs of up to so many go over the GPUs' own links in one round, where all reach each other's memory "
        "(one machine, CUDA IPC); larger ones, and all with 0, by NCCL: the same bits",
        Range(0, 64 << 20));
  field("nnodes", c.nnodes, "machines", "that share the worker's ranks evenly; `baton worker` runs on each",
        Range(1, 256));
  field("node-rank", c.node_rank, "index", "of this machine; 0 has rank 0 and serves", Range(0, 255));
  field("master-addr", c.master_addr, "host", "machine 0, as all reach it");
  field("master-port", c.master_port, "port", "where the ranks meet, on machine 0", Range(1, 65535));
}

template <class Visitor>
void VisitEngineFields(WorkerConfig& c, Visitor& field) {
  field("kv-cache-dtype", c.kv_cache_dtype, "", "what KV is kept in",
        OneOf({{"auto", "the compute dtype"},
               {"bfloat16"},
               {"float32"},
               {"float16"},
               {"fp8", "e4m3 with the checkpoint's scales, else 1; half the memory of bfloat16"},
               {"fp8_e4m3", "the same"}}));
  field("kv-cache-memory", c.kv_cache_memory, "bytes",
        "KV memory; 0 = what max-model-len × max-num-seqs needs, at most 40 % of the free memory / local workers; "
        "on a GPU by gpu-memory-utilization",
        AtLeast(0));
  field("local-workers", c.local_workers, "workers", "workers that share this machine's cores and memory", AtLeast(1));
  field("block-size", c.block_size, "tokens", "tokens per KV block", MultipleOf(16, 16, 1024));
  field("enable-prefix-caching", c.enable_prefix_caching, "", "reuse the KV of prompts that begin alike");
  field("hash-key-file", c.hash_key_file, "",
        "64 hex digits keying prefix hashes; else the first router or the cluster secret sets the key");
  field("max-num-seqs", c.max_num_seqs, "sequences", "sequences in one step", Range(1, 65536));
  field("async-scheduling", c.async_scheduling, "",
        "plan a step of decodes while the step before it runs, and give it to the GPU; auto = on a GPU. What reads the "
        "tokens on the host (grammars, bad words, beam searches) is planned between steps, as without");
  field("max-num-batched-tokens", c.max_num_batched_tokens, "tokens", "tokens in one step", AtLeast(1));
  field("long-prefill-token-threshold", c.long_prefill_token_threshold, "tokens",
        "of one prompt in one step at most, so that a long one leaves room for others; 0 = no such bound, or 4 % of "
        "max-model-len with max-num-partial-prefills above 1",
        AtLeast(0));
  field("max-num-partial-prefills", c.max_num_partial_prefills, "prompts",
        "computed in parts at once; others wait, but for those that fit whole into a step; 0 = no such bound",
        AtLeast(0));
  field("max-long-partial-prefills", c.max_long_partial_prefills, "prompts",
        "of these longer than long-prefill-token-threshold; shorter ones pass others that wait; 0 = no such bound",
        AtLeast(0));
  field("max-step-ms", c.max_step_ms, "ms", "a step is cut to take no longer, by the measured rate; 0 = no cap by time",
        Range(0, kLongestWaitMs));
  field("max-stall-ms", c.max_stall_ms, "ms",
        "a step in which streams wait for a prefill: no longer, or than twice their tokens alone; 0 = max-step-ms",
        Range(0, kLongestWaitMs));
  field("max-waiting-requests", c.max_waiting_requests, "requests", "more are refused, with the predicted wait",
        AtLeast(1));
  field("max-waiting-tokens", c.max_waiting_tokens, "tokens", "prompt tokens that may wait; more are refused",
        Range(1, int64_t{1} << 50));
  field("threads", c.threads, "threads",
        "compute threads of the worker, shared by its ranks; 0 = cores / local workers", Range(0, 1024));
}

template <class Visitor>
void VisitHandoffFields(WorkerConfig& c, Visitor& field) {
  field(
      "transport", c.transport, "",
      "how KV travels, the first of these whose self-test passes: auto = RDMA (where UCX finds a device), shm (on one "
      "machine), tcp | ucx = RDMA, ucx-shm (on one machine), ucx-tcp, tcp | any other = that one, then tcp",
      TransportRule());
  field("require-rdma", c.require_rdma, "", "RDMA or nothing: no start without a device, no peer without it");
  field("kv-trusted-network", c.kv_trusted_network, "",
        "workers alone reach the network of their RDMA, UCX and NCCL, whose ports neither ask for the secret nor "
        "encrypt: "
        "off loopback these are not used without it (or --insecure)");
  field("kv-tls", c.kv_tls, "",
        "KV travels in TLS, by tcp and shm only; alike on all workers that hand over to each other");
  field("kv-kernel-tls", c.kv_kernel_tls, "",
        "with --kv-tls, the kernel encrypts KV that is sent by tcp, where it can: Linux from 6.14 on, with its module "
        "tls");
  field(
      "kv-cuda-ipc", c.kv_cuda_ipc, "",
      "KV that comes by shm or RDMA from a prefill worker on a GPU is read from its memory, by the decode worker's GPU "
      "or its network device, where CUDA IPC or UCX opens it; else it is staged through host memory");
  field("landing-port", c.landing_port, "port",
        "where a decode worker takes KV, and its further rank processes at the next ports; 0 = any free port",
        Range(0, 65535));
  field("landing-slots", c.landing_slots, "slots",
        "that prefill workers may write, 2 for every prompt that arrives; one has at most half while others wait",
        Range(2, 4096));
  field("landing-slot-bytes", c.landing_slot_bytes, "bytes", "of one landing slot; 0 = 4 MiB on a GPU, 1 MiB on a CPU",
        LandingSlotBytesRule());
  field("test-kv-fault-rate", c.test_kv_fault_rate, "0…1",
        "for tests: share of the KV slots that are damaged on the way; of a quarter as many the source is spoilt",
        Range(0, 1));
  field("test-failing-transport", c.test_failing_transport, "",
        "for tests: a prefill worker damages its self-tests on this one");
  field("test-leaked-blocks", c.test_leaked_blocks, "blocks",
        "that nobody accounts for, so that the leak gauge is seen", AtLeast(0));
}

/// The flags: name, field, unit, help, what it may be.
template <class Visitor>
void VisitFields(WorkerConfig& c, Visitor&& field) {
  VisitModelFields(c, field);
  VisitRankFields(c, field);
  VisitEngineFields(c, field);
  VisitHandoffFields(c, field);
  field("router-timeout-ms", c.router_timeout_ms, "ms",
        "a router silent this long is gone: its sequences are cancelled", Range(1000, kLongestWaitMs));
  field("shutdown-timeout-ms", c.shutdown_timeout_ms, "ms", "how long a drain waits for running requests",
        Range(0, kLongestWaitMs));
  field("log-level", c.log_level, "", "the least that is written", LogLevelRule());
  field("log-format", c.log_format, "", "of a log line", LogFormatRule());
}

}  // namespace baton::worker
