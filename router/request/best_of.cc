#include "router/request/best_of.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using MaybeError = std::optional<ApiError>;

// The fields that change a distribution, or what is drawn from it, have no meaning where nothing is drawn.
MaybeError CheckBeamFields(const RequestInput& input) {
  const SamplingOptions& s = input.sampling;
  const auto off = [](const auto& number, auto neutral) { return !number || *number == neutral; };
  const std::pair<const char*, bool> neutral[] = {
      {"temperature", off(s.temperature, 1) || off(s.temperature, 0)},
      {"top_p", off(s.top_p, 1)},
      {"top_k", !s.top_k || *s.top_k <= 0},
      {"min_p", off(s.min_p, 0)},
      {"repetition_penalty", off(s.repetition_penalty, 1)},
      {"presence_penalty", off(s.presence_penalty, 0)},
      {"frequency_penalty", off(s.frequency_penalty, 0)},
      {"logit_bias", s.logit_bias.empty()},
      {"allowed_token_ids", s.allowed_token_ids.empty()},
      {"bad_words", input.bad_words.empty() && s.bad_words.empty()},
      {"thinking_token_budget", !input.thinking_budget || input.thinking_budget_is_a_wish},
      {input.grammar_field.c_str(), s.grammar == nullptr},
  };
  for (const auto& [field, unused] : neutral) {
    if (unused) continue;
    return BadRequest(StrCat("`", field,
                             "` cannot be combined with `use_beam_search`: beams are chosen by the model's own "
                             "probabilities, and nothing is drawn."),
                      field);
  }
  return std::nullopt;
}

class LikeliestSink final : public AnswerSink {
 public:
  LikeliestSink(std::shared_ptr<AnswerSink> sink, int32_t answers, bool shows_logprobs)
      : sink_(std::move(sink)), answers_(answers), shows_logprobs_(shows_logprobs) {}

  void OnAdmitted(const TokenizedRequest& generation, int64_t cached_tokens) override {
    choices_.resize(static_cast<size_t>(generation.sampling.n));
    shown_ = generation;
    shown_.sampling.n = answers_;
    sink_->OnAdmitted(shown_, cached_tokens);
  }
  void OnPromptLogprobs(std::vector<PositionLogprobs> positions) override {
    sink_->OnPromptLogprobs(std::move(positions));
  }
  void OnDelta(ChoiceDelta&& delta, const RequestUsage&) override {
    Choice& choice = choices_[delta.index];
    for (const PositionLogprobs& p : delta.logprobs) choice.logprob += static_cast<double>(p.chosen.logprob);
    for (const size_t end : delta.text_ends) choice.delta.text_ends.push_back(choice.delta.text.size() + end);
    choice.delta.text += delta.text;
    choice.delta.thoughts += delta.thoughts;
    choice.delta.thought_tokens = std::max(choice.delta.thought_tokens, delta.thought_tokens);
    std::move(delta.token_ids.begin(), delta.token_ids.end(), std::back_inserter(choice.delta.token_ids));
    if (shows_logprobs_)
      std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.delta.logprobs));
  }
  void OnChoiceEnd(const ChoiceFinish& finish) override { choices_[finish.index].finish = finish; }
  void OnDone(const RequestSummary& summary) override {
    std::vector<size_t> order(choices_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return std::pair(-choices_[a].logprob, a) < std::pair(-choices_[b].logprob, b);
    });
    for (int32_t i = 0; i < answers_; ++i) {
      Choice& choice = choices_[order[static_cast<size_t>(i)]];
      choice.delta.index = choice.finish.index = static_cast<uint32_t>(i);
      sink_->OnDelta(std::move(choice.delta), summary.usage);
      sink_->OnChoiceEnd(choice.finish);
    }
    sink_->OnDone(summary);
  }
  void OnFailed(const ApiError& error) override { sink_->OnFailed(error); }
  size_t UnsentBytes() const override { return 0; }
  uint64_t TakenBytes() const override { return 0; }

 private:
  struct Choice {
    ChoiceDelta delta;  ///< all of it
    ChoiceFinish finish;
    double logprob = 0;  ///< of all tokens
  };
  const std::shared_ptr<AnswerSink> sink_;
  const int32_t answers_;
  const bool shows_logprobs_;
  TokenizedRequest shown_;  ///< as the client asked it
  std::vector<Choice> choices_;
};

}  // namespace

int32_t ChoicesDrawn(const SamplingOptions& s) { return std::max(s.n, s.best_of.value_or(s.n)); }

MaybeError CheckBestOf(const RequestInput& input, const RouterConfig& config) {
  const SamplingOptions& s = input.sampling;
  if (s.best_of && *s.best_of != 1 && *s.best_of < s.n)
    return BadRequest(StrCat("`best_of` (", *s.best_of, ") must be at least `n` (", s.n, ")."), "best_of");
  if (ChoicesDrawn(s) > config.max_choices) {
    return BadRequest(
        StrCat("`best_of` must be in [", s.n, ", ", config.max_choices, "], got ", *s.best_of, " (--max-choices)."),
        "best_of");
  }
  return IsBeamSearch(s) ? CheckBeamFields(input) : std::nullopt;
}

std::shared_ptr<AnswerSink> KeepLikeliest(std::shared_ptr<AnswerSink> sink, int32_t answers, bool shows_logprobs) {
  return std::make_shared<LikeliestSink>(std::move(sink), answers, shows_logprobs);
}

}  // namespace baton::router
