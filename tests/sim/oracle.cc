#include "tests/sim/oracle.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/str_cat.h"
#include "router/admission/admission.h"
#include "router/fleet/prompt_logprobs.h"
#include "router/fleet/relay_codec.h"
#include "router/router_config.h"
#include "sim/proof_engine.h"
#include "sim/router_process.h"
#include "sim/stepped_engine.h"
#include "worker/relay/codec.h"

namespace baton::sim {
namespace {

router::FinishReason ReasonOf(router::FinishReason reason, const router::ChoiceText& text) {
  return text.stopped() ? router::FinishReason::kStop : reason;
}

/// What a client sees of a choice whose tokens are all known, token by token.
ChoiceView ViewOf(const router::TokenizedRequest& generation, router::ChoiceText text, const router::RelayNews& news) {
  ChoiceView view;
  for (size_t t = 0; t < news.token_ids.size() && !text.stopped(); ++t) {
    const bool stop_token = news.stop_token_id && t + 1 == news.token_ids.size();
    view.text += text.Append(news.token_ids[t], !stop_token || generation.include_stop_str_in_output).text;
    view.tokens += TokenText(news.token_ids[t], news.logprobs, t);
    ++view.count;
  }
  view.text += text.Finish().text;
  router::ChoiceFinish finish{0, ReasonOf(news.finish, text)};
  const auto& asked = generation.sampling.stop_token_ids;
  if (text.stopped()) {
    finish.stop_string = text.stop_string();
  } else if (news.stop_token_id && std::find(asked.begin(), asked.end(), *news.stop_token_id) != asked.end()) {
    finish.stop_token_id = news.stop_token_id;
  }
  finish.nothing_allowed = news.nothing_allowed && !text.stopped();
  view.end = EndText(finish);
  return view;
}

std::string Different(const char* what, const std::string& got, const std::string& want) {
  return StrCat(what, " \"", got, "\", one worker answers \"", want, "\"");
}

std::string CheckChoice(const ChoiceView& got, const ChoiceView& want, bool whole) {
  const auto fits = [whole](const std::string& have, const std::string& all) {
    return whole ? have == all : all.starts_with(have);
  };
  if (!fits(got.tokens, want.tokens)) return Different("tokens", got.tokens, want.tokens);
  if (!fits(got.text, want.text)) return Different("text", got.text, want.text);
  if ((whole || !got.end.empty()) && got.end != want.end) return Different("the end", got.end, want.end);
  return "";
}

std::string CheckUsage(const router::TokenizedRequest& generation, const ClientView& client) {
  int64_t tokens = 0;
  for (const auto& [index, choice] : client.choices) tokens += choice.count;
  if (client.usage.completion_tokens != tokens)
    return StrCat("usage says ", client.usage.completion_tokens, " tokens, ", tokens, " came");
  if (client.usage.prompt_tokens != static_cast<int64_t>(generation.prompt.size()))
    return StrCat("usage says ", client.usage.prompt_tokens, " prompt tokens of ", generation.prompt.size());
  return "";
}

/// The answer of one worker, to the bit.
std::string CheckAgainst(const AloneAnswer& alone, const ClientView& client, bool whole) {
  for (const auto& [index, choice] : client.choices) {
    const auto want = alone.choices.find(index);
    if (want == alone.choices.end()) return StrCat("got a choice ", index);
    if (std::string wrong = CheckChoice(choice, want->second, whole); !wrong.empty())
      return StrCat("choice ", index, " got ", wrong);
  }
  if (!whole) return "";
  if (client.choices.size() != alone.choices.size())
    return StrCat("got ", client.choices.size(), " of ", alone.choices.size(), " choices");
  if (client.prompt_scores != alone.prompt_scores)
    return Different("got prompt logprobs", client.prompt_scores, alone.prompt_scores);
  return "";
}

/// Of workers that were lost, that are full or not there, or of time that is over.
bool MayFailWith(int http_status) {
  return http_status == 429 || http_status == 502 || http_status == 503 || http_status == 504;
}

}  // namespace

/// As RequestDriver::GiveWay says.
bool GaveWay(const ClientView& client) {
  return client.failure.message.find("this answer was not read for") != std::string::npos;
}

AloneAnswer AnswerAlone(const ClusterScenario& scenario, const router::TokenizedRequest& generation, bool odd) {
  router::AttachLeg leg;
  leg.leg_id = generation.request_id;
  leg.credit_tokens = 1000;
  leg.position = generation.prompt.size();
  ClusterScenario plain = scenario;
  plain.chunk = 256;
  engine::SteppedEngine one(EngineOptions(plain, 16, 128, odd));
  const v1::Attach attach = router::EncodeAttach(generation, leg);
  BATON_CHECK(one.Add(worker::DecodeAttach(attach, {.vocab_size = engine::kFakeVocab}, 1, one.now).value()).ok());
  while (!one.scheduler().Idle()) {
    one.grammars()->Turn(1000);
    BATON_CHECK(one.Step() || one.scheduler().Idle(), "nothing to run, but requests live");
  }
  AloneAnswer alone;
  const std::vector<router::ChoiceText> texts = TextsOf(SimText(), generation);
  for (const auto& [key, answer] : one.answers) {
    engine::SequenceOutput output;
    output.tokens = answer.tokens;
    output.finish = answer.finish;
    output.stop_token = answer.stop_token;
    output.nothing_allowed = answer.nothing_allowed;
    const router::RelayNews news = router::DecodeNews(worker::EncodeOutput(output));
    alone.choices[key.second] = ViewOf(generation, texts[key.second], news);
    std::string pieces;
    for (const std::string& piece : worker::EncodePromptLogprobs(answer.prompt_logprobs, 1 << 20)) pieces += piece;
    if (!pieces.empty()) alone.prompt_scores = ScoresText(router::DecodePromptLogprobs(pieces));
  }
  return alone;
}

std::string CheckClient(const ClusterScenario& scenario, const router::TokenizedRequest& generation,
                        const ClientView& client, int deaths) {
  const bool whole = client.end == ClientView::End::kComplete;
  const bool left = client.end == ClientView::End::kLeft && scenario.leave > 0;
  const std::string failure =
      StrCat(client.failure.http_status, " ", client.failure.code, ": ", client.failure.message);
  if (client.end == ClientView::End::kFailed && !MayFailWith(client.failure.http_status))
    return StrCat("failed as nobody may: ", failure);
  if (GaveWay(client) && (scenario.keys < 2 || client.unread_for < router::Admission::kStill))
    return StrCat("gave way and was read ", Milliseconds(client.unread_for), " ms before: ", failure);
  // Who comes back as another release dies before: a request may lose as many workers as it may try.
  const bool may_lose_all = scenario.upgrade > 0 && deaths >= router::RouterConfig().max_attempts;
  const bool full = scenario.most_running > 0 && client.failure.http_status == 429;
  if (scenario.faultless() && !may_lose_all && !full && !whole) return StrCat("failed without a fault: ", failure);
  if (scenario.one_fault != OneFault::kNone && !whole && !left) return StrCat("saw the one fault: ", failure);
  if (whole && client.mixed && scenario.one_numerics()) return "is labelled mixed, and all workers compute alike";
  if (scenario.one_numerics()) return CheckAgainst(AnswerAlone(scenario, generation, false), client, whole);
  if (!whole) return "";  // no label says whose answer it began as
  if (client.mixed) return CheckUsage(generation, client);
  const std::string even = CheckAgainst(AnswerAlone(scenario, generation, false), client, whole);
  const std::string odd = CheckAgainst(AnswerAlone(scenario, generation, true), client, whole);
  if (!even.empty() && !odd.empty()) return StrCat("is not labelled mixed, and ", even, ", the odd one: ", odd);
  return CheckUsage(generation, client);
}

}  // namespace baton::sim
