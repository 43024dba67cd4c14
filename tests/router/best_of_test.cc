#include "router/request/best_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

// ---- what may be asked

ApiError Refused(const std::function<void(RequestInput&)>& change) {
  RequestInput input;
  input.sampling.use_beam_search = true;
  input.sampling.n = 2;
  EXPECT_FALSE(CheckBestOf(input, RouterConfig()));
  change(input);
  auto error = CheckBestOf(input, RouterConfig());
  EXPECT_TRUE(error);
  EXPECT_EQ(error.value_or(ApiError()).http_status, 400);
  return error.value_or(ApiError());
}

TEST(CheckBestOf, FieldsOfADrawAreRefusedBesideBeamsByName) {
  const std::pair<const char*, std::function<void(RequestInput&)>> fields[] = {
      {"temperature", [](RequestInput& i) { i.sampling.temperature = 0.7F; }},
      {"top_p", [](RequestInput& i) { i.sampling.top_p = 0.9F; }},
      {"top_k", [](RequestInput& i) { i.sampling.top_k = 5; }},
      {"min_p", [](RequestInput& i) { i.sampling.min_p = 0.1F; }},
      {"repetition_penalty", [](RequestInput& i) { i.sampling.repetition_penalty = 1.1F; }},
      {"presence_penalty", [](RequestInput& i) { i.sampling.presence_penalty = 1; }},
      {"frequency_penalty", [](RequestInput& i) { i.sampling.frequency_penalty = 1; }},
      {"logit_bias", [](RequestInput& i) { i.sampling.logit_bias = {{1, 1}}; }},
      {"allowed_token_ids", [](RequestInput& i) { i.sampling.allowed_token_ids = {1}; }},
      {"bad_words", [](RequestInput& i) { i.bad_words = {"x"}; }},
      {"thinking_token_budget", [](RequestInput& i) { i.thinking_budget = 3; }},
      {"tools",
       [](RequestInput& i) {
         i.grammar_field = "tools";
         i.sampling.grammar = std::make_shared<const Grammar>();
       }},
  };
  for (const auto& [field, change] : fields) {
    const ApiError error = Refused(change);
    EXPECT_EQ(error.param, field);
    EXPECT_THAT(error.message, HasSubstr("cannot be combined with `use_beam_search`"));
  }
}

TEST(CheckBestOf, NeutralValuesAreTaken) {
  RequestInput input;
  SamplingOptions& s = input.sampling;
  s.use_beam_search = true;
  s.temperature = 0, s.top_p = 1, s.top_k = -1, s.min_p = 0, s.repetition_penalty = 1, s.seed = 5;
  s.presence_penalty = s.frequency_penalty = 0;
  s.n = 2, s.best_of = 4, s.logprobs = 3, s.min_tokens = 2;
  EXPECT_FALSE(CheckBestOf(input, RouterConfig()));
  s.temperature = 1;
  EXPECT_FALSE(CheckBestOf(input, RouterConfig()));
}

TEST(CheckBestOf, TooFewOrTooManyAreRefusedWithTheNumbers) {
  ApiError error = Refused([](RequestInput& i) { i.sampling.n = 4, i.sampling.best_of = 3; });
  EXPECT_EQ(error.param, "best_of");
  EXPECT_EQ(error.message, "`best_of` (3) must be at least `n` (4).");
  const RouterConfig config;
  error = Refused([&config](RequestInput& i) { i.sampling.best_of = config.max_choices + 1; });
  EXPECT_EQ(error.param, "best_of");
  EXPECT_THAT(error.message, HasSubstr("(--max-choices)"));
  RequestInput one;
  one.sampling.n = 3, one.sampling.best_of = 1;
  EXPECT_FALSE(CheckBestOf(one, RouterConfig())) << "some clients always send it";
  EXPECT_EQ(ChoicesDrawn(one.sampling), 3);
}

// ---- which are answered

class HeardAnswer final : public AnswerSink {
 public:
  void OnAdmitted(const TokenizedRequest& g, int64_t) override { text += StrCat("n=", g.sampling.n); }
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override { text += " scores"; }
  void OnDelta(ChoiceDelta&& d, const RequestUsage&) override {
    absl::StrAppend(&text, " ", d.index, ":", d.text, "/", d.token_ids.size(), "/", d.logprobs.size());
  }
  void OnChoiceEnd(const ChoiceFinish& f) override {
    absl::StrAppend(&text, " end", f.index, "=", static_cast<int>(f.reason));
  }
  void OnDone(const RequestSummary& s) override { absl::StrAppend(&text, " done ", s.usage.completion_tokens); }
  void OnFailed(const ApiError& e) override { text += " failed " + e.message; }
  uint64_t TakenBytes() const override { return 0; }
  size_t UnsentBytes() const override { return 1 << 30; }
  std::string text;
};

ChoiceDelta Delta(uint32_t index, const std::string& text, float logprob) {
  return {index, text, "", {7}, {PositionLogprobs{{7, logprob, 1}, {}}}};
}

std::string Answered(bool shows_logprobs) {
  const auto heard = std::make_shared<HeardAnswer>();
  const auto sink = KeepLikeliest(heard, 2, shows_logprobs);
  TokenizedRequest generation;
  generation.sampling.n = 4;
  sink->OnAdmitted(generation, 0);
  sink->OnPromptLogprobs({});
  for (const auto& [index, logprob] : {std::pair(0u, -3.0F), {1u, -1.5F}, {2u, -9.0F}, {3u, -1.0F}})
    sink->OnDelta(Delta(index, StrCat("a", index), logprob), {});
  sink->OnDelta(Delta(1, "b", -0.125F), {});  // its last token is likelier than that of the likeliest
  sink->OnDelta(Delta(3, "b", -0.25F), {});
  EXPECT_EQ(heard->text, "n=2 scores") << "nothing is known before the end";
  EXPECT_EQ(sink->UnsentBytes(), 0u) << "what is kept here waits for no client";
  for (uint32_t i = 0; i < 4; ++i) sink->OnChoiceEnd({i, i == 3 ? FinishReason::kLength : FinishReason::kStop});
  sink->OnDone({.usage = {5, 6, 0}});
  return heard->text;
}

TEST(KeepLikeliest, TheGreatestSumsOfLogprobsAreAnsweredBestFirst) {
  EXPECT_EQ(Answered(true), "n=2 scores 0:a3b/2/2 end0=2 1:a1b/2/2 end1=1 done 6");
  EXPECT_EQ(Answered(false), "n=2 scores 0:a3b/2/0 end0=2 1:a1b/2/0 end1=1 done 6");
}

TEST(KeepLikeliest, AFailureIsPassedOn) {
  const auto heard = std::make_shared<HeardAnswer>();
  KeepLikeliest(heard, 1, false)->OnFailed(BadRequest("no"));
  EXPECT_EQ(heard->text, " failed no");
}

}  // namespace
}  // namespace baton::router
