// Between the wire (proto/worker.proto) and the engine's structs. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/step/request.h"
#include "proto/worker.pb.h"

namespace baton::worker {

/// The limits of an Attach.
struct AttachLimits {
  int32_t vocab_size = 0;
};

/// InvalidArgument with both numbers: an id or a salt that is longer than any of a router's.
absl::Status CheckNames(const v1::RequestKey& key, const std::string& cache_salt);

/// InvalidArgument with the number: so many bytes are no whole token ids.
absl::Status CheckTokenBytes(size_t bytes);

/// Token ids that an Attach has, as it says them.
size_t TokensIn(const v1::Attach& attach);

/// An Attach without a ticket as an engine request; `key` and `now` are the caller's. InvalidArgument with the numbers:
/// token bytes that are no whole ids, ids outside the vocabulary, prompt_len against the tokens, position against both,
/// choices that are not consecutive.
absl::StatusOr<engine::Request> DecodeAttach(const v1::Attach& attach, const AttachLimits& limits,
                                             engine::RequestKey key, TimePoint now);

/// A handoff's first token, or a beam search's first candidates.
engine::FirstToken DecodeFirst(const v1::FirstToken& first);

/// News of one sequence, without request id and attach_gen. Prompt logprobs are encoded by EncodePromptLogprobs.
v1::RelayEntry EncodeOutput(const engine::SequenceOutput& output);

/// Scores of prompt tokens as serialized PromptLogprobs, cut into pieces of at most `max_bytes` that may be
/// concatenated.
std::vector<std::string> EncodePromptLogprobs(const std::vector<kernels::SampleResult>& scores, size_t max_bytes);

/// A status as the wire's Error.
v1::Error EncodeError(const absl::Status& status, uint32_t retry_after_ms, uint32_t queue_ms);

}  // namespace baton::worker
