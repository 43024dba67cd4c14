#include "cli/serve_check.h"

#include <unistd.h>

#include "common/status.h"
#include "common/str_cat.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/logprob_limit.h"
#include "kernels/plugin/device_plugin.h"
#include "worker/ranks/rank.h"

namespace baton::cli {
namespace {

absl::Status Usage(const absl::Status& status) {
  return status.ok() ? status : absl::FailedPreconditionError(status.message());
}

}  // namespace

absl::Status CheckWorkerStart(const worker::WorkerConfig& config) {
  BATON_RETURN_IF_ERROR(Usage(config.Validate()));
  if (config.device != "cpu") {  // a device is opened by the process that uses it
    const std::string path = config.device_plugin.empty() ? kernels::DefaultCudaPlugin() : config.device_plugin;
    if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        StrCat("--device ", config.device, ": ", path, " cannot be read (--device-plugin; `make cuda` builds one)"));
  }
  kernels::CpuOpsConfig ops_config = worker::OpsConfigOf(config);
  ops_config.threads = 1;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Ops> ops, kernels::MakeCpuOps(ops_config));
  return engine::InspectModel(worker::SourceOf(config, worker::PlaceOf(config, 0)), ops->traits(),
                              config.max_num_batched_tokens)
      .status();
}

absl::Status CheckRouterStart(const router::RouterConfig& config) { return Usage(config.Validate()); }

absl::Status CheckTogether(const router::RouterConfig& router, const worker::WorkerConfig& worker) {
  if (!worker.on_gpu() || router.max_logprobs <= kernels::kMostCudaLogprobs) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("--max-logprobs ", router.max_logprobs, ": --device ", worker.device,
                                              " gives at most ", kernels::kMostCudaLogprobs, " for a token"));
}

}  // namespace baton::cli
