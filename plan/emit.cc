#include "plan/emit.h"

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/utf8.h"

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

// The last part of a path; of "." and "..": of the folder that they are.
std::string FileName(const std::string& path) {
  if (path.empty()) return "";
  std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  std::error_code unknown;
  if (whole == "." || *--whole.end() == "..") whole = std::filesystem::weakly_canonical(path, unknown);
  return (whole.has_filename() ? whole : whole.parent_path()).filename();
}

// In double quotes: Quoted()'s escapes are YAML's. A name is a text there, whatever it looks like.
std::string YamlText(const std::string& utf8) { return Quoted(utf8, utf8.size()); }

// As a shell reads it, on one line.
std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./:@%+=,") == std::string::npos;
  if (plain) return text;
  if (Printable(text, text.size()) != text) return StrCat("$'", absl::CHexEscape(text), "'");
  return StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// " --name value", or " --name=-value", which would be a flag by itself.
std::string FlagText(std::string_view name, const std::string& value) {
  return StrCat(" --", name, value.starts_with('-') ? "=" : " ", ShellWord(value));
}

absl::Status CheckNames(const WorkerConfig& config) {
  for (const std::string& path : {config.model, config.tokenizer, config.hf_config_path}) {
    if (const std::string name = FileName(path); !IsUtf8(name))
      return absl::InvalidArgumentError(StrCat("--emit: the name ", Quoted(name), " is not UTF-8, which YAML is"));
  }
  return absl::OkStatus();
}

using Flags = std::vector<std::pair<std::string, std::string>>;  // name → value, not quoted

// What router and workers must be told of what lies beside the model.
Flags SharedFlags(const WorkerConfig& config) {
  Flags flags;
  if (!config.tokenizer.empty()) flags.emplace_back("tokenizer", "/models/" + FileName(config.tokenizer));
  if (config.skip_tokenizer_init) flags.emplace_back("skip-tokenizer-init", "true");
  if (!config.hf_config_path.empty())
    flags.emplace_back("hf-config-path", "/models/" + FileName(config.hf_config_path));
  return flags;
}

// What decides about a worker's bytes or bits beside what is always written, where it is not the default.
Flags OtherFlags(const WorkerConfig& config) {
  const WorkerConfig defaults;
  Flags flags;
  if (config.landing_slots != defaults.landing_slots) flags.emplace_back("landing-slots", StrCat(config.landing_slots));
  if (config.landing_slot_bytes != defaults.landing_slot_bytes)
    flags.emplace_back("landing-slot-bytes", StrCat(config.landing_slot_bytes));
  if (!config.deterministic) flags.emplace_back("deterministic", "false");
  if (!config.hf_overrides.empty()) flags.emplace_back("hf-overrides", config.hf_overrides);
  if (!config.rope_scaling.empty()) flags.emplace_back("rope-scaling", config.rope_scaling);
  if (config.rope_theta > 0) flags.emplace_back("rope-theta", StrCat(config.rope_theta));
  return flags;
}

// As a map in one line: {name: value, …}, without its braces.
std::string YamlMap(const Flags& flags) {
  return absl::StrJoin(flags, ", ", [](std::string* out, const auto& flag) {
    const bool number = flag.second.find_first_not_of("0123456789") == std::string::npos;
    absl::StrAppend(out, flag.first, ": ", number || flag.second == "true" ? flag.second : YamlText(flag.second));
  });
}

// A text of a compose file, where $NAME would be a variable.
std::string ComposeText(const std::string& utf8) { return YamlText(absl::StrReplaceAll(utf8, {{"$", "$$"}})); }

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
  for (const Flags& more : {OtherFlags(config), SharedFlags(config)})
    out += StrCat(more.empty() ? "" : ", ", YamlMap(more));
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
  Flags more = OtherFlags(config);
  if (config.reduction_width > 1) more.emplace_back("reduction-width", StrCat(config.reduction_width));
  if (config.load_format != "auto") more.emplace_back("load-format", config.load_format);
  if (IsOnGpu(config)) more.emplace_back("device", "cuda");
  for (const auto& [flag, value] : more) args.insert(args.end(), {"--" + flag, ComposeText(value)});
  return StrCat("  ", name, ":\n    <<: *container\n    command: [", absl::StrJoin(args, ", "),
                "]\n    environment: *tls\n", IsOnGpu(config) ? Gpus(config, index) : "");
}

}  // namespace

std::string PlanFlags(const WorkerConfig& config, const MemoryPlan& memory) {
  std::string out =
      StrCat(FlagText("model", config.model).substr(1), " --device ", config.device, " --dtype ",
             DTypeName(memory.compute), " --tensor-parallel-size ", config.tensor_parallel_size,
             " --pipeline-parallel-size ", config.pipeline_parallel_size, " --reduction-width ", config.reduction_width,
             " --kv-cache-dtype ", config.kv_cache_dtype, " --block-size ", config.block_size, " --max-model-len ",
             memory.max_model_len, " --max-num-seqs ", config.max_num_seqs, " --max-num-batched-tokens ",
             config.max_num_batched_tokens, " --kv-cache-memory ", memory.kv_budget);
  if (!config.tokenizer.empty()) out += FlagText("tokenizer", config.tokenizer);
  if (config.skip_tokenizer_init) out += " --skip-tokenizer-init";
  if (!config.hf_config_path.empty()) out += FlagText("hf-config-path", config.hf_config_path);
  if (config.load_format != "auto") out += " --load-format " + config.load_format;
  for (const auto& [flag, value] : OtherFlags(config)) out += FlagText(flag, value);
  return out + "\n";
}

absl::StatusOr<std::string> HelmValues(const WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout) {
  BATON_RETURN_IF_ERROR(CheckNames(config));
  WorkerConfig cut = config;
  cut.tensor_parallel_size = layout.tensor_size;
  cut.pipeline_parallel_size = layout.stages;
  std::string out = absl::StrFormat(
      "# %s, by `baton plan`. Say which volume the model is in%s.\nmodel:\n  path: %s\n"
      "  volume: {persistentVolumeClaim: {claimName: models, readOnly: true}}\n  loadFormat: %s\n  dtype: %s\n"
      "  maxModelLen: %d\n",
      layout.Name(), IsOnGpu(config) ? ", and by `image` where baton-cuda is" : "", YamlText(FileName(config.model)),
      config.load_format, config.dtype, memory.max_model_len);
  if (config.reduction_width > 1) absl::StrAppendFormat(&out, "reductionWidth: %d\n", config.reduction_width);
  if (const Flags flags = SharedFlags(config); !flags.empty())
    out += StrCat("router:\n  extraArgs: {", YamlMap(flags), "}\n");
  for (const Role& role : RolesOf(layout)) out += RoleValues(cut, memory, role);
  return out;
}

absl::StatusOr<std::string> ComposeFile(const WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout) {
  BATON_RETURN_IF_ERROR(CheckNames(config));
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
  std::string shared;
  for (const auto& [flag, value] : SharedFlags(config)) {
    const std::string variable = absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}));
    shared += StrCat("  BATON_", variable, ": ", ComposeText(value), "\n");
  }
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
      layout.Name(), ShellWord(FileName(config.model)), image, workers, shared, image, hosts, services, known);
}

}  // namespace baton::plan
