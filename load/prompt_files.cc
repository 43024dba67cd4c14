// Prompts from files: ShareGPT's conversations, JSON lines; traces are in trace_files.h.
#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/json.h"
#include "common/open_to_read.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "load/dataset_line.h"
#include "load/prompts.h"
#include "load/trace_files.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;

absl::StatusOr<Prompt> Custom(const std::string& text, const BenchOptions& options, const DatasetLine& line) {
  BATON_ASSIGN_OR_RETURN(const Json row, line.Object(text));
  constexpr int64_t kUnsaid = 256;  // as vLLM has it
  Prompt prompt{.output_tokens = options.custom_output_len > 0 ? options.custom_output_len : kUnsaid};
  const bool chat = IsChat(options);
  if (row.contains("prompt") && row["prompt"].is_string()) {
    prompt.text = row["prompt"].get<std::string>();
  } else if (chat && row.contains("messages") && row["messages"].is_array()) {
    prompt.messages = row["messages"].dump();
  } else {
    return line.Wrong(chat ? "neither a \"prompt\" nor \"messages\"" : "no \"prompt\" that is a text");
  }
  if (options.custom_output_len > 0) return prompt;
  if (options.custom_output_len < 0 || row.contains("output_tokens")) {
    BATON_ASSIGN_OR_RETURN(const double output, line.Number(row, "output_tokens", 1, kMostTokensOfALine));
    prompt.output_tokens = static_cast<int64_t>(output);
  }
  return prompt;
}

// What a conversation is not usable for, or was: all are counted, and said where too few are left.
enum class Use : uint8_t { kUsable, kBroken, kFewTurns, kShortQuestion, kLongQuestion, kShortAnswer, kLongInAll };
constexpr std::array<std::string_view, 7> kSkipped = {"",
                                                      "broken",
                                                      "with fewer than two turns",
                                                      "with a first turn of fewer than 16 bytes",
                                                      "with a first turn of more than 4096 bytes",
                                                      "with an answer of fewer than 16 bytes",
                                                      "with more than 8192 bytes in both turns"};

struct Conversations {
  std::array<int64_t, kSkipped.size()> of{};
  std::string first_broken;

  std::string Text() const {
    std::string skipped;
    for (size_t i = 1; i < of.size(); ++i) {
      if (of[i] == 0) continue;
      skipped += StrCat(skipped.empty() ? "" : ", ", of[i], " ", kSkipped[i]);
      if (i == static_cast<size_t>(Use::kBroken)) skipped += StrCat(" (the first: ", first_broken, ")");
    }
    return StrCat(std::accumulate(of.begin(), of.end(), int64_t{0}), " conversations read, ", of[0], " usable",
                  skipped.empty() ? "" : "; skipped: ", skipped);
  }
};

// Why no prompt can be made of a conversation; empty: nothing is broken.
std::string BrokenIn(const Json& one) {
  const auto turns = one.is_object() ? one.find("conversations") : one.end();
  if (!one.is_object() || turns == one.end() || !turns->is_array()) return "has no list \"conversations\"";
  for (size_t i = 0; i < std::min<size_t>(2, turns->size()); ++i) {
    const Json& turn = (*turns)[i];
    if (!turn.is_object() || !turn.contains("value") || !turn["value"].is_string())
      return StrCat("turn ", i + 1, " has no text \"value\"");
  }
  return "";
}

// The first two turns, with the limits of `vllm bench serve` at four bytes a token, which is a guess: nothing is
// tokenized here.
Use ReadConversation(const Json& one, const BenchOptions& o, Prompt& prompt) {
  const Json& turns = one["conversations"];
  if (turns.size() < 2) return Use::kFewTurns;
  prompt.text = turns[0]["value"].get<std::string>();
  const size_t answer = turns[1]["value"].get_ref<const std::string&>().size();
  if (prompt.text.size() < 16) return Use::kShortQuestion;
  if (prompt.text.size() > 4096) return Use::kLongQuestion;
  if (o.sharegpt_output_len == 0 && answer < 16) return Use::kShortAnswer;
  if (o.sharegpt_output_len == 0 && prompt.text.size() + answer > 8192) return Use::kLongInAll;
  prompt.output_tokens = o.sharegpt_output_len > 0 ? o.sharegpt_output_len : static_cast<int64_t>(answer) / 4;
  return Use::kUsable;
}

absl::Status ReadShareGpt(std::istream& in, const BenchOptions& o, std::vector<Prompt>& prompts, std::string& note) {
  const Json all = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array()) return absl::InvalidArgumentError(StrCat(o.dataset_path, ": not a JSON list of conversations"));
  Conversations seen;
  size_t number = 0;
  for (const Json& one : all) {
    ++number;
    Prompt prompt;
    const std::string broken = BrokenIn(one);
    if (!broken.empty() && seen.first_broken.empty()) seen.first_broken = StrCat("conversation ", number, " ", broken);
    const Use use = broken.empty() ? ReadConversation(one, o, prompt) : Use::kBroken;
    ++seen.of[static_cast<size_t>(use)];
    if (use != Use::kUsable) continue;
    prompts.push_back(std::move(prompt));
    if (static_cast<int64_t>(prompts.size()) == o.num_prompts) break;
  }
  if (prompts.empty()) return absl::InvalidArgumentError(StrCat(o.dataset_path, ": no request in it: ", seen.Text()));
  if (static_cast<int64_t>(prompts.size()) < o.num_prompts || !seen.first_broken.empty()) note = seen.Text();
  return absl::OkStatus();
}

absl::Status ReadLines(std::istream& in, const BenchOptions& o, std::vector<Prompt>& prompts) {
  TraceReader trace(o);
  std::string text;
  bool azure = o.dataset_name == "azure", known = !o.any_trace;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (static_cast<int64_t>(prompts.size()) == o.num_prompts) break;
    while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    if (constexpr std::string_view kMark = "\xEF\xBB\xBF"; number == 1 && text.starts_with(kMark))
      text.erase(0, kMark.size());
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    if (!std::exchange(known, true)) azure = text[begin] != '{' && text[begin] != '[';
    if (azure && text.starts_with("TIMESTAMP")) continue;
    const DatasetLine line(o, number);
    absl::StatusOr<Prompt> prompt = o.dataset_name == "custom" ? Custom(text, o, line)
                                    : azure                    ? trace.Azure(text, line, prompts.size())
                                                               : trace.Json(text, line, prompts.size());
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const BenchOptions& options, std::string* note) {
  if (options.dataset_path.empty())
    return absl::InvalidArgumentError(StrCat("--dataset-name ", options.dataset_name, " needs --dataset-path"));
  BATON_ASSIGN_OR_RETURN(std::ifstream in,
                         OpenToRead(options.dataset_path, options.any_trace ? "--trace" : "--dataset-path"));
  std::vector<Prompt> prompts;
  std::string more;
  BATON_RETURN_IF_ERROR(options.dataset_name == "sharegpt" ? ReadShareGpt(in, options, prompts, more)
                                                           : ReadLines(in, options, prompts));
  if (prompts.empty()) return absl::InvalidArgumentError(StrCat(options.dataset_path, ": no request in it"));
  const auto found = static_cast<int64_t>(prompts.size());
  if (note != nullptr && (found < options.num_prompts || !more.empty()))
    *note = StrCat(options.dataset_path, ": ", found, " requests, --num-prompts ", options.num_prompts,
                   more.empty() ? "" : ": ", more);
  return prompts;
}

}  // namespace baton::load
