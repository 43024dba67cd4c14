#include "sim/requests.h"

#include <algorithm>

#include "common/str_cat.h"
#include "sim/router_process.h"
#include "sim/stepped_engine.h"

namespace baton::sim {
namespace {

constexpr int32_t kFirstLetter = 3;  ///< tokens 3 to 47 are one character each, '!' to 'M'

/// Of the characters '!' to 'M': one that ends late, one that ends by itself, one of few texts, one that recurs.
const Grammar kGrammars[] = {{GrammarKind::kRegex, "([0-9]{3}[-,])*[A-F]"},
                             {GrammarKind::kRegex, "[!-/]{2,20}([A-M]|=[0-9])"},
                             {GrammarKind::kChoice, R"(["ABBA", "ABBALA", "ABE", "C0DE:123456789", "C0DE:123465789"])"},
                             {GrammarKind::kLark, "start: \"(\" (start | DIGIT)* \")\"\nDIGIT: /[0-9]/"}};

/// Letters that leave each of the grammars dead ends.
constexpr std::string_view kLetters[] = {"0123456789", "!#%+-/", "ABCD0123456789", "(0123456789A", "=!-/,"};

std::vector<int32_t> TokensOf(std::string_view letters) {
  std::vector<int32_t> tokens;
  for (const char letter : letters) tokens.push_back(kFirstLetter + letter - '!');
  std::ranges::sort(tokens);
  tokens.erase(std::ranges::unique(tokens).begin(), tokens.end());
  return tokens;
}

/// A beam search that may need more blocks than a worker has is refused. Where roles change, it may come to any worker.
bool BeamsFitAnywhere(const ClusterScenario& scenario, const router::TokenizedRequest& g) {
  const auto fit = [&](int block, int blocks) {
    const auto prompt = static_cast<int>(g.prompt.size()), shared = prompt / block;
    const int whole = (prompt + g.sampling.max_tokens.value_or(0) + block - 1) / block, beams = g.sampling.n + 1;
    return 1 + shared + beams * (whole - shared) <= blocks;
  };
  return fit(scenario.prefill_block, scenario.prefill_blocks) && fit(scenario.decode_block, scenario.decode_blocks);
}

}  // namespace

router::TokenizedRequest MakeTokenizedRequest(int number, const ClusterScenario& scenario, Timeline& time,
                                              const router::TokenizedRequest* before) {
  router::TokenizedRequest g;
  g.request_id = StrCat("r", number);
  const auto length = static_cast<int32_t>(1 + time.Below(static_cast<uint64_t>(scenario.longest)));
  std::vector<int32_t> prompt = engine::RandomTokens(time.Below(1u << 30), length);
  if (before != nullptr && time.Below(3) == 0) {  // begins as the one before
    prompt.insert(prompt.begin(), before->prompt.begin(), before->prompt.end());
    prompt.resize(std::min<size_t>(prompt.size(), static_cast<size_t>(scenario.longest)));
    g.cache_salt = before->cache_salt;
  }
  g.prompt = std::move(prompt);
  if (time.Below(8) == 0) g.cache_salt = "another";
  g.sampling.n = static_cast<int32_t>(time.Below(4) == 0 ? 2 + time.Below(2) : 1);
  g.sampling.max_tokens = static_cast<int32_t>(1 + time.Below(static_cast<uint64_t>(scenario.most_tokens)));
  g.sampling.temperature = time.Below(2) == 0 ? 0.0f : 0.9f;
  g.sampling.seed = time.Below(1ull << 40);
  g.sampling.ignore_eos = true;
  if (time.Below(2) == 0) g.sampling.logprobs = 1;
  if (time.Below(8) == 0) g.sampling.prompt_logprobs = 1;
  if (time.Below(3) == 0) g.sampling.repetition_penalty = 1.3f;
  if (time.Below(4) == 0) g.sampling.stop_token_ids = {3, 17};
  if (time.Below(6) == 0) {
    const auto letter = [&time] { return static_cast<char>('!' + time.Below(45)); };
    g.stop = {std::string{letter(), letter()}, std::string{letter()}};
    g.include_stop_str_in_output = time.Below(2) == 0;
  }
  g.priority = static_cast<int32_t>(time.Below(3)) - 1;
  if (scenario.timeout_ms > 0 && time.Below(2) == 0) g.timeout = std::chrono::milliseconds(scenario.timeout_ms);
  if (number % 7 == 5 && (!scenario.roles_change() || BeamsFitAnywhere(scenario, g))) {
    g.sampling.use_beam_search = true;
    g.sampling.best_of = g.sampling.n + 1;
    g.sampling.length_penalty = 0.5f;
    g.sampling.early_stopping = number % 3;
  }
  const bool guided = scenario.seed >= kSeedsWithGrammars && (scenario.seed + static_cast<uint64_t>(number)) % 4 != 0;
  if (guided && !g.sampling.use_beam_search) {
    g.sampling.grammar = std::make_shared<Grammar>(kGrammars[static_cast<size_t>(number) / 4 % std::size(kGrammars)]);
    g.eos_token_ids.assign(SimText().tokenizer->eos_ids().begin(), SimText().tokenizer->eos_ids().end());
    if (scenario.seed >= kSeedsOfDeadEnds && time.Below(2) == 0)
      g.sampling.allowed_token_ids = TokensOf(kLetters[time.Below(std::size(kLetters))]);
  }
  return g;
}

}  // namespace baton::sim
