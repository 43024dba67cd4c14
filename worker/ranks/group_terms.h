// What every rank of a worker must have alike, whoever started it: else they would compute parts that do not fit, or
// fit and differ in their last bits.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/parallel/communicator.h"
#include "kernels/ops.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// The flags, one a line: "--block-size 16".
std::string TermsOf(const WorkerConfig& config);
/// The model's digest, and how this machine computes, one a line.
std::string TermsOf(const std::string& model_digest, const kernels::OpsTraits& traits);

/// OK: all ranks of `world` (null: one rank) have the same terms. FailedPrecondition, on every rank: the first rank
/// that differs from rank 0, with both lines.
absl::Status AgreeOnTerms(engine::Communicator* world, const std::string& terms);

}  // namespace baton::worker
