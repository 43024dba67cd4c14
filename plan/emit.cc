#include "plan/emit.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/str_cat.h"

namespace baton::plan {
namespace {

using worker::WorkerConfig;

struct Role {
  const char* name;
  int workers = 0;
};

std::vector<Role> RolesOf(const Proposal& layout) {
  return {{"prefill", layout.prefill}, {"decode", layout.decode}, {"both", layout.both}};
}

// What a worker takes and a gibibyte for the process itself, in MiB.
int64_t MemoryMiB(const MemoryPlan& memory) { return ((memory.Total() + memory.text_bytes) >> 20) + 1024; }

std::string FileName(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const std::string whole = end == std::string::npos ? "" : path.substr(0, end + 1);
  return whole.substr(whole.rfind('/') + 1);  // npos + 1 = 0
}

// What router and workers must be told of the tokenizer, as (flag, value), where the tokenizer is beside the model.
std::vector<std::pair<std::string, std::string>> TokenizerFlags(const WorkerConfig& config) {
  std::vector<std::pair<std::string, std::string>> flags;
  if (!config.tokenizer.empty()) flags.emplace_back("tokenizer", "/models/" + FileName(config.tokenizer));
  if (config.skip_tokenizer_init) flags.emplace_back("skip-tokenizer-init", "true");
  return flags;
}

// What decides about a worker's bytes or bits beside what is always written, as (flag, value), where it is not the
// default.
std::vector<std::pair<std::string, std::string>> OtherFlags(const WorkerConfig& config) {
  const WorkerConfig defaults;
  std::vector<std::pair<std::string, std::string>> flags;
  if (config.landing_slots != defaults.landing_slots) flags.emplace_back("landing-slots", StrCat(config.landing_slots));
  if (config.landing_slot_bytes != defaults.landing_slot_bytes)
    flags.emplace_back("landing-slot-bytes", StrCat(config.landing_slot_bytes));
  return flags;
}

bool IsOnGpu(const WorkerConfig& config) { return config.device != "cpu"; }

std::string RoleValues(const WorkerConfig& config, const MemoryPlan& memory, const Role& role) {
  std::string out = StrCat(role.name, ":\n  replicas: ", role.workers, "\n");
  if (role.workers == 0) return out;
  const bool gpu = IsOnGpu(config);
  absl::StrAppendFormat(&out, "  tensorParallelSize: %d\n  pipelineParallelSize: %d\n  device: %s\n",
                        config.tensor_parallel_size, config.pipeline_parallel_size, gpu ? "cuda" : "cpu");
  absl::StrAppendFormat(&out, "  kvCacheMemory: %d\n", memory.kv_budget);
  const std::string host = gpu ? "" : StrCat("memory: ", MemoryMiB(memory), "Mi");
  const std::string device = gpu ? StrCat("nvidia.com/gpu: ", config.ranks()) : "";
  absl::StrAppendFormat(&out, "  resources:\n    requests: {%s%s}\n    limits: {%s%s}\n", host, device, host, device);
  absl::StrAppendFormat(
      &out, "  extraArgs: {max-num-seqs: %d, max-num-batched-tokens: %d, block-size: %d, kv-cache-dtype: %s",
      config.max_num_seqs, config.max_num_batched_tokens, config.block_size, config.kv_cache_dtype);
  for (const auto& [flag, value] : OtherFlags(config)) out += StrCat(", ", flag, ": ", value);
  for (const auto& [flag, value] : TokenizerFlags(config)) out += StrCat(", ", flag, ": ", value);
  out += "}\n";
  return out;
}

// The GPUs of the `index`-th worker of the machine: the next ones that no other has, one for each rank.
std::string Gpus(const WorkerConfig& config, int index) {
  std::vector<std::string> ids;
  for (int rank = 0; rank < config.ranks(); ++rank) ids.push_back(StrCat("\"", index * config.ranks() + rank, "\""));
  return StrCat("    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: [",
                absl::StrJoin(ids, ", "), "], capabilities: [gpu]}]}}}\n");
}

// A service's lines; `index`: among all workers.
std::string WorkerService(const WorkerConfig& config, const MemoryPlan& memory, const char* role,
                          const std::string& name, int index) {
  std::vector<std::string> args = {"worker",  "--role",           role, "--worker-id", name,      "--host",
                                   "0.0.0.0", "--advertise-host", name, "--port",      "\"9100\""};
  if (std::string_view(role) == "decode") args.insert(args.end(), {"--landing-port", "\"9101\""});
  for (const auto& [flag, value] :
       {std::pair<const char*, int64_t>{"--tensor-parallel-size", config.tensor_parallel_size},
        {"--pipeline-parallel-size", config.pipeline_parallel_size},
        {"--max-model-len", memory.max_model_len},
        {"--max-num-seqs", config.max_num_seqs},
        {"--max-num-batched-tokens", config.max_num_batched_tokens},
        {"--block-size", config.block_size},
        {"--kv-cache-memory", memory.kv_budget}}) {
    args.push_back(flag);
    args.push_back(absl::StrFormat("\"%d\"", value));
  }
  for (const auto& [flag, value] : {std::pair{"--dtype", config.dtype}, {"--kv-cache-dtype", config.kv_cache_dtype}}) {
    args.push_back(flag);
    args.push_back(value);
  }
  std::vector<std::pair<std::string, std::string>> more = OtherFlags(config);
  if (config.reduction_width > 1) more.emplace_back("reduction-width", StrCat(config.reduction_width));
  if (config.load_format != "auto") more.emplace_back("load-format", config.load_format);
  if (IsOnGpu(config)) more.emplace_back("device", "cuda");
  for (const auto& [flag, value] : more) args.insert(args.end(), {"--" + flag, StrCat("\"", value, "\"")});
  return StrCat("  ", name, ":\n    <<: *container\n    command: [", absl::StrJoin(args, ", "),
                "]\n    environment: *tls\n", IsOnGpu(config) ? Gpus(config, index) : "");
}

}  // namespace

std::string HelmValues(const WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout) {
  WorkerConfig cut = config;
  cut.tensor_parallel_size = layout.tensor_size;
  cut.pipeline_parallel_size = layout.stages;
  std::string out = absl::StrFormat(
      "# %s, by `baton plan`. Say which volume the model is in%s.\nmodel:\n  path: %s\n"
      "  volume: {persistentVolumeClaim: {claimName: models, readOnly: true}}\n  loadFormat: %s\n  dtype: %s\n"
      "  maxModelLen: %d\n",
      layout.Name(), IsOnGpu(config) ? ", and by `image` where baton-cuda is" : "", FileName(config.model),
      config.load_format, config.dtype, memory.max_model_len);
  if (config.reduction_width > 1) absl::StrAppendFormat(&out, "reductionWidth: %d\n", config.reduction_width);
  if (const auto flags = TokenizerFlags(config); !flags.empty())
    out += StrCat("router:\n  extraArgs: {", absl::StrJoin(flags, ", ", absl::PairFormatter(": ")), "}\n");
  for (const Role& role : RolesOf(layout)) out += RoleValues(cut, memory, role);
  return out;
}

std::string ComposeFile(const WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout) {
  WorkerConfig cut = config;
  cut.tensor_parallel_size = layout.tensor_size;
  cut.pipeline_parallel_size = layout.stages;
  const char* image = IsOnGpu(config) ? "baton-cuda:0.1.0" : "baton:0.1.0";
  std::string services, hosts, known;
  int workers = 0;
  for (const Role& role : RolesOf(layout)) {
    for (int i = 0; i < role.workers; ++i, ++workers) {
      const std::string name = StrCat(role.name, "-", i);
      services += WorkerService(cut, memory, role.name, name, workers);
      hosts += StrCat(", --host, ", name);
      known += StrCat(", --worker, \"", name, ":9100\"");
    }
  }
  std::string tokenizer;
  for (const auto& [flag, value] : TokenizerFlags(config))
    tokenizer +=
        StrCat("  BATON_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})), ": \"", value, "\"\n");
  return absl::StrFormat(
      R"(# %s, by `baton plan`.
#   MODELS=/folder/of/models MODEL=%s BATON_API_KEY=a-key-of-yours docker compose -f THIS up
version: "3.8"
x-container: &container
  image: ${IMAGE:-%s}
  restart: unless-stopped
  read_only: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  stop_grace_period: 45s
  tmpfs: ["/run/baton:uid=10001,mode=0755", "/tmp"]
  volumes:
    - "${MODELS:?the folder that the model is in}:/models:ro"
    - "certificates:/etc/baton/tls"
  depends_on:
    certificates: {condition: service_completed_successfully}
x-tls: &tls
  BATON_MODEL: /models/${MODEL:?the file or folder of the model within MODELS}
  BATON_TLS_CERT: /etc/baton/tls/server.crt
  BATON_TLS_KEY: /etc/baton/tls/server.key
  BATON_TLS_CA: /etc/baton/tls/ca.crt
  BATON_CLUSTER_SECRET_FILE: /etc/baton/tls/cluster-secret
  BATON_LOCAL_WORKERS: "%d"
%s
services:
  certificates:
    image: ${IMAGE:-%s}
    command: [certs, /etc/baton/tls%s]
    read_only: true
    cap_drop: [ALL]
    healthcheck: {disable: true}
    volumes: ["certificates:/etc/baton/tls"]
%s  router:
    <<: *container
    # Plain text within the machine only: the port below is on loopback. For other machines, end TLS in a proxy in front.
    command: [router, --host, 0.0.0.0, --port, "8000", --insecure-no-tls%s]
    environment:
      <<: *tls
      BATON_API_KEY: ${BATON_API_KEY:?a key that clients must send}
    ports: ["127.0.0.1:8000:8000"]
volumes:
  certificates:
)",
      layout.Name(), FileName(config.model), image, workers, tokenizer, image, hosts, services, known);
}

}  // namespace baton::plan
