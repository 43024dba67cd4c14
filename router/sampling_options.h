// SamplingOptions, and what is said of each of its fields, once: VisitSampling. Reading JSON, describing it (OpenAPI),
// checking ranges, a model's defaults and neutral values are loops over it. Plain values, no protobuf, no JSON.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar_kind.h"

namespace baton::router {

/// A request's wishes for the choice of tokens. Absent = the model's default (generation_config.json), else neutral;
/// see ResolveSampling.
struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, min_tokens, max_tokens;
  std::optional<int32_t> logprobs, prompt_logprobs;  ///< k: the chosen token's and the k best
  std::optional<uint64_t> seed;
  std::optional<bool> ignore_eos;
  std::optional<bool> use_beam_search;
  std::optional<int32_t> best_of;
  std::optional<float> length_penalty;
  std::optional<int32_t> early_stopping;  ///< 0: false, 1: true, 2: "never"
  int32_t n = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids, stop_token_ids;
  std::vector<int32_t> bad_words;          ///< token ids, -1 behind each word's; bad_words.cc makes them of texts
  std::shared_ptr<const Grammar> grammar;  ///< null: none. No part of VisitSampling: json_grammar.cc reads it
};

inline bool IsBeamSearch(const SamplingOptions& s) { return s.use_beam_search.value_or(false); }

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// The facts about one field that hold wherever it is read, described or checked.
struct SamplingField {
  std::string_view name;               ///< in JSON, in OpenAPI and in errors
  std::string_view config_name = {};   ///< in generation_config.json; empty: not read from it
  std::optional<double> neutral = {};  ///< of a request and a model that name none; none: the field stays absent
  double low = -kNoLimit,
         high = kNoLimit;          ///< what OpenAPI allows; CheckSamplingNumbers refuses other floats and biases
  bool low_open = false;           ///< `low` itself is not allowed
  std::string_view at_least = {};  ///< of integers that are checked against `low` alone: what an error asks for
  bool may_be_empty = true;        ///< of lists: [] is a list
  bool shared_json = true;         ///< false: chat and text completions read it, each in a way of its own
};

/// Calls visit(&SamplingOptions::member, SamplingField) for every field, in OpenAPI's order. Counts have more limits,
/// which are options of the router or the model's: request_input.cc.
template <class Visit>
void VisitSampling(Visit&& visit) {
  using S = SamplingOptions;
  visit(&S::temperature, {.name = "temperature", .config_name = "temperature", .neutral = 1, .low = 0});
  visit(&S::top_p, {.name = "top_p", .config_name = "top_p", .neutral = 1, .low = 0, .high = 1, .low_open = true});
  visit(&S::top_k,
        {.name = "top_k", .config_name = "top_k", .neutral = 0, .low = -1, .at_least = "-1 or 0 (all), or at least 1"});
  visit(&S::min_p, {.name = "min_p", .config_name = "min_p", .neutral = 0, .low = 0, .high = 1});
  visit(&S::presence_penalty, {.name = "presence_penalty", .neutral = 0, .low = -2, .high = 2});
  visit(&S::frequency_penalty, {.name = "frequency_penalty", .neutral = 0, .low = -2, .high = 2});
  visit(&S::repetition_penalty,
        {.name = "repetition_penalty", .config_name = "repetition_penalty", .neutral = 1, .low = 0, .low_open = true});
  visit(&S::logit_bias, {.name = "logit_bias", .low = -100, .high = 100});
  visit(&S::allowed_token_ids, {.name = "allowed_token_ids", .may_be_empty = false});
  visit(&S::min_tokens, {.name = "min_tokens", .neutral = 0, .low = 0, .at_least = "at least 0"});
  visit(&S::max_tokens, {.name = "max_tokens", .config_name = "max_new_tokens", .low = 0});
  visit(&S::stop_token_ids, {.name = "stop_token_ids"});
  visit(&S::ignore_eos, {.name = "ignore_eos", .neutral = 0});
  visit(&S::seed, {.name = "seed"});
  visit(&S::n, {.name = "n", .low = 1});
  visit(&S::best_of, {.name = "best_of", .low = 1, .at_least = "at least 1"});
  visit(&S::use_beam_search, {.name = "use_beam_search"});
  visit(&S::length_penalty, {.name = "length_penalty", .low = -16, .high = 16});
  visit(&S::early_stopping, {.name = "early_stopping", .low = 0, .high = 2, .shared_json = false});
  visit(&S::prompt_logprobs, {.name = "prompt_logprobs", .low = 0});
  visit(&S::logprobs, {.name = "logprobs", .low = 0, .shared_json = false});
}

}  // namespace baton::router
