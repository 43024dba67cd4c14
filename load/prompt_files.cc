// Prompts from files: ShareGPT's conversations, JSON lines; traces are in trace_files.h.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

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
  Prompt prompt{.output_tokens = options.custom_output_len};
  const bool chat = IsChat(options);
  if (row.contains("prompt") && row["prompt"].is_string()) {
    prompt.text = row["prompt"].get<std::string>();
  } else if (chat && row.contains("messages") && row["messages"].is_array()) {
    prompt.messages = row["messages"].dump();
  } else {
    return line.Wrong(chat ? "neither a \"prompt\" nor \"messages\"" : "no \"prompt\" that is a text");
  }
  if (row.contains("output_tokens")) {
    BATON_ASSIGN_OR_RETURN(const double output, line.Number(row, "output_tokens", "", 1, kMostTokensOfALine));
    prompt.output_tokens = static_cast<int64_t>(output);
  }
  return prompt;
}

// The first two turns of every conversation, as others measure it: the answer's length is a guess of four bytes a
// token.
absl::Status ReadShareGpt(std::istream& in, const BenchOptions& o, std::vector<Prompt>& prompts) {
  const Json all = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array()) return absl::InvalidArgumentError(StrCat(o.dataset_path, ": not a JSON list of conversations"));
  size_t number = 0;
  for (const Json& one : all) {
    ++number;
    const auto turns = one.is_object() ? one.find("conversations") : one.end();
    if (!one.is_object() || turns == one.end() || !turns->is_array())
      return absl::InvalidArgumentError(StrCat(o.dataset_path, ": conversation ", number, " has no \"conversations\""));
    if (turns->size() < 2) continue;
    for (const Json& turn : {(*turns)[0], (*turns)[1]}) {
      if (!turn.is_object() || !turn.contains("value") || !turn["value"].is_string())
        return absl::InvalidArgumentError(
            StrCat(o.dataset_path, ": conversation ", number, ": a turn has no \"value\""));
    }
    Prompt prompt{.text = (*turns)[0]["value"].get<std::string>()};
    const auto answer = static_cast<int64_t>((*turns)[1]["value"].get_ref<const std::string&>().size());
    prompt.output_tokens = o.sharegpt_output_len > 0 ? o.sharegpt_output_len : std::clamp<int64_t>(answer / 4, 4, 1024);
    if (prompt.text.size() < 16 || prompt.text.size() > 4096) continue;  // as others do, in tokens
    prompts.push_back(std::move(prompt));
    if (static_cast<int64_t>(prompts.size()) == o.num_prompts) break;
  }
  return absl::OkStatus();
}

absl::Status ReadLines(std::istream& in, const BenchOptions& o, std::vector<Prompt>& prompts) {
  TraceReader trace(o);
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (static_cast<int64_t>(prompts.size()) == o.num_prompts) break;
    while (text.ends_with('\r') || text.ends_with(' ')) text.pop_back();
    const bool azure = o.dataset_name == "azure";
    if (text.empty() || (azure && text.starts_with("TIMESTAMP"))) continue;
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

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const BenchOptions& options) {
  if (options.dataset_path.empty())
    return absl::InvalidArgumentError(StrCat("--dataset-name ", options.dataset_name, " needs --dataset-path"));
  std::ifstream in(options.dataset_path);
  if (!in) return absl::NotFoundError(StrCat("--dataset-path: cannot read ", options.dataset_path));
  std::vector<Prompt> prompts;
  BATON_RETURN_IF_ERROR(options.dataset_name == "sharegpt" ? ReadShareGpt(in, options, prompts)
                                                           : ReadLines(in, options, prompts));
  if (prompts.empty()) return absl::InvalidArgumentError(StrCat(options.dataset_path, ": no request in it"));
  return prompts;
}

}  // namespace baton::load
