#include "sim/client.h"

#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace baton::sim {

std::string TokenText(int32_t token, const std::vector<router::PositionLogprobs>& logprobs, size_t at) {
  std::string text = StrCat(token);
  if (at >= logprobs.size()) return text + " ";
  const auto one = [&text](const router::TokenLogprob& l) {
    uint32_t bits = 0;
    std::memcpy(&bits, &l.logprob, sizeof(bits));
    text += StrCat("/", l.token_id, ":", bits, ":", l.rank);
  };
  one(logprobs[at].chosen);
  for (const router::TokenLogprob& l : logprobs[at].top) one(l);
  return text + " ";
}

std::string ScoresText(const std::vector<router::PositionLogprobs>& positions) {
  std::string text;
  for (size_t i = 0; i < positions.size(); ++i) text += TokenText(positions[i].chosen.token_id, positions, i);
  return text;
}

std::string EndText(const router::ChoiceFinish& finish) {
  return StrCat("end ", static_cast<int>(finish.reason),
                finish.stop_token_id ? StrCat(" at ", *finish.stop_token_id) : "",
                finish.stop_string ? StrCat(" at '", *finish.stop_string, "'") : "",
                finish.nothing_allowed ? " nothing allowed" : "");
}

void ClientSink::CheckOpen() const {
  BATON_CHECK(view_->end == ClientView::End::kNone || left(), "a client was told more after the last call");
}

void ClientSink::OnPromptLogprobs(std::vector<router::PositionLogprobs> positions) {
  CheckOpen();
  BATON_CHECK(view_->prompt_scores.empty(), "a client got its prompt's logprobs twice");
  view_->prompt_scores = ScoresText(positions);
}

void ClientSink::OnDelta(router::ChoiceDelta&& delta, const router::RequestUsage&) {
  CheckOpen();
  ChoiceView& choice = view_->choices[delta.index];
  BATON_CHECK(choice.end.empty(), "choice ", delta.index, " got more after its end");
  for (size_t t = 0; t < delta.token_ids.size(); ++t) choice.tokens += TokenText(delta.token_ids[t], delta.logprobs, t);
  choice.count += static_cast<int64_t>(delta.token_ids.size());
  choice.text += delta.text;
  view_->told += delta.text.size();
}

void ClientSink::OnChoiceEnd(const router::ChoiceFinish& finish) {
  CheckOpen();
  ChoiceView& choice = view_->choices[finish.index];
  BATON_CHECK(choice.end.empty(), "choice ", finish.index, " ended twice");
  choice.end = EndText(finish);
}

void ClientSink::OnDone(const router::RequestSummary& summary) {
  CheckOpen();
  if (left()) return;
  view_->usage = summary.usage;
  view_->mixed = summary.mixed_numerics;
  view_->end = ClientView::End::kComplete;
  view_->ended = clock_.Now();
}

void ClientSink::OnFailed(const router::ApiError& error) {
  CheckOpen();
  if (left()) return;
  view_->failure = error;
  if (!view_->reads) view_->unread_for = clock_.Now() - view_->unread_since;
  view_->end = ClientView::End::kFailed;
  view_->ended = clock_.Now();
}

}  // namespace baton::sim
