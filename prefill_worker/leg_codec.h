// A prefill leg on the wire: what Prefill asks, and the messages that answer it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prefill_worker/prefill_desk.h"
#include "proto/worker.pb.h"
#include "worker/process/role_service.h"
#include "worker/relay/codec.h"

namespace baton::prefill_worker {

/// Of the leg of that router.
prefill::JobKey KeyOf(const v1::RequestKey& in, const std::string& router);
/// `router`: who asks. InvalidArgument with what is wrong; the request's key is the desk's to choose.
absl::StatusOr<JobOrder> DecodeOrder(const v1::PrefillRequest& in, const worker::AttachLimits& limits, TimePoint now,
                                     const std::string& router = {});

/// Sends the desk's results to `sink`, and ends it.
std::shared_ptr<JobEvents> MakeLegAnswer(std::shared_ptr<worker::PrefillSink> sink);

/// What its legs are, in a load: those that it computes (`computing`), and those that it sends.
void FillLegLoad(const prefill::PushStats& stats, int32_t computing, v1::HandoffLoad& load);

}  // namespace baton::prefill_worker
