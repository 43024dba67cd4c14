// Requests that engine tests ask.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "sim/stepped_engine.h"

namespace baton::engine {

/// A greedy request of random tokens that no eos ends before `max_tokens`.
inline Request Endless(RequestKey key, int32_t prompt_len, int32_t max_tokens) {
  Request r = MakeRequest(key, RandomTokens(key, prompt_len), max_tokens);
  r.sampling.ignore_eos = true;
  return r;
}

/// Attaches a request whose KV is there, as a handoff would have brought it.
inline absl::Status AttachComputed(SteppedEngine& h, Request request, std::vector<FirstToken> first) {
  AttachedRequest attached;
  attached.kv = h.cache().Start("", "");
  if (!h.cache().Grow(attached.kv, request.prompt_len)) return absl::ResourceExhaustedError("too few blocks");
  attached.request = std::move(request);
  attached.first = std::move(first);
  return h.scheduler().AttachRequest(std::move(attached), h.now);
}

/// A request with fields drawn from `seed`: temperature, penalties, bias, stops, logprobs, n …
inline Request MixedRequest(RequestKey key, uint64_t seed, int32_t prompt_len, int32_t vocab = kFakeVocab) {
  std::mt19937_64 rng(seed);
  const auto below = [&](uint64_t n) { return static_cast<int32_t>(rng() % n); };
  // Half of the prompts start alike, so that prefixes are shared.
  std::vector<int32_t> prompt = RandomTokens(below(2) == 0 ? 7 : seed, prompt_len, vocab);
  prompt.back() = below(static_cast<uint64_t>(vocab));
  Request r = MakeRequest(key, std::move(prompt), 4 + below(24));
  SamplingParams& p = r.sampling;
  p.seed = rng();
  p.temperature = below(3) == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(below(4));
  if (below(3) == 0) p.top_k = 1 + below(20);
  if (below(3) == 0) p.top_p = 0.5f + 0.1f * static_cast<float>(below(5));
  if (below(4) == 0) p.min_p = 0.05f;
  if (below(3) == 0) p.repetition_penalty = 1.3f;
  if (below(3) == 0) p.presence_penalty = 0.4f;
  if (below(3) == 0) p.frequency_penalty = 0.2f;
  if (below(4) == 0) p.logit_bias = {{below(static_cast<uint64_t>(vocab)), 2.0f}};
  if (below(6) == 0) {
    for (int32_t t = 0; t < vocab; t += 2) p.allowed_token_ids.push_back(t);
  }
  p.eos_token_ids = {3};
  if (below(2) == 0) p.stop_token_ids = {4, 5};
  p.ignore_eos = below(3) == 0;
  p.min_tokens = below(4);
  p.logprobs = below(4) - 1;
  if (below(5) == 0) p.prompt_logprobs = below(3);
  if (below(4) == 0) p.n = 2 + below(3);
  r.priority = below(3);
  return r;
}

}  // namespace baton::engine
