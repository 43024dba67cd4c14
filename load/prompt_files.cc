// Prompts from files: ShareGPT's conversations, JSON lines, traces of requests.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "load/prompts.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMostTokens = 16 << 20;

class Line {
 public:
  Line(const BenchOptions& options, int64_t number) : options_(options), number_(number) {}

  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(options_.dataset_path, ":", number_, ": ", what));
  }
  absl::StatusOr<Json> Object(const std::string& text) const {
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object()) return Wrong(StrCat("not a JSON object: ", Printable(text, 60)));
    return value;
  }
  /// The number under one of two names.
  absl::StatusOr<double> Number(const Json& row, const char* name, const char* other, double least, double most) const {
    const char* key = row.contains(name) ? name : other;
    const auto it = row.find(key);
    if (it == row.end()) return Wrong(StrCat("no \"", name, "\""));
    if (!it->is_number()) return Wrong(StrCat("\"", key, "\" is no number: ", Printable(it->dump(), 40)));
    const double value = it->get<double>();
    if (!(value >= least && value <= most))
      return Wrong(StrCat("\"", key, "\" is ", value, ", not ", least, " to ", most));
    return value;
  }
  /// A trace's time, not before the line before.
  absl::Status SetTime(double ms, std::optional<double>& first, double& last, Prompt& prompt) const {
    if (!first) first = last = ms;
    if (ms < last) return Wrong(StrCat("time runs backwards by ", last - ms, " ms"));
    last = ms;
    prompt.at = Duration(static_cast<int64_t>((ms - *first) / options_.trace_speed * 1e6));
    return absl::OkStatus();
  }

 private:
  const BenchOptions& options_;
  const int64_t number_;
};

/// The number of a block's made text: the same hash is the same text.
absl::StatusOr<uint64_t> BlockPiece(const Json& hash, const Line& line) {
  if (hash.is_number_integer()) return hash.get<uint64_t>() * 0x9e3779b97f4a7c15 + 1;
  if (hash.is_string()) return std::hash<std::string>{}(hash.get_ref<const std::string&>());
  return line.Wrong(StrCat("a hash is an integer or a text, not ", Printable(hash.dump(), 40)));
}

// A trace's prompt is made of its blocks; what they do not cover is its own.
absl::Status MakeBlocks(const Json& row, const BenchOptions& o, const Line& line, uint64_t number, Prompt& prompt) {
  const char* key = row.contains("hash_ids") ? "hash_ids" : "bh";
  const int64_t size = o.trace_block_size > 0 ? o.trace_block_size : key[0] == 'h' ? 512 : 1024;
  int64_t left = prompt.tokens;
  if (const auto blocks = row.find(key); blocks != row.end()) {
    if (!blocks->is_array()) return line.Wrong(StrCat("\"", key, "\" is no list"));
    if (static_cast<int64_t>(blocks->size()) > prompt.tokens / size + 1)
      return line.Wrong(StrCat(blocks->size(), " blocks of ", size, " tokens for a prompt of ", prompt.tokens));
    for (const Json& hash : *blocks) {
      BATON_ASSIGN_OR_RETURN(const uint64_t piece, BlockPiece(hash, line));
      prompt.pieces.push_back({piece, std::min(left, size)});
      left -= std::min(left, size);
    }
  }
  prompt.pieces.push_back({o.seed * 0x9e3779b97f4a7c15 + 2 * number, left});
  return absl::OkStatus();
}

struct Reading {
  const BenchOptions& options;
  std::vector<Prompt> prompts{};
  std::optional<double> first_ms{};
  double last_ms = 0;

  absl::Status Trace(const std::string& text, const Line& line) {
    BATON_ASSIGN_OR_RETURN(const Json row, line.Object(text));
    Prompt prompt;
    BATON_ASSIGN_OR_RETURN(const double ms, line.Number(row, "timestamp", "ts", 0, 1e15));
    BATON_ASSIGN_OR_RETURN(const double input, line.Number(row, "input_length", "il", 1, kMostTokens));
    BATON_ASSIGN_OR_RETURN(const double output, line.Number(row, "output_length", "ol", 0, kMostTokens));
    prompt.tokens = static_cast<int64_t>(input);
    prompt.output_tokens = std::max<int64_t>(1, static_cast<int64_t>(output));
    BATON_RETURN_IF_ERROR(line.SetTime(ms, first_ms, last_ms, prompt));
    BATON_RETURN_IF_ERROR(MakeBlocks(row, options, line, prompts.size(), prompt));
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  }

  // 2023-11-16 18:15:46.6805900,374,44
  absl::Status Azure(const std::string& text, const Line& line) {
    if (text.starts_with("TIMESTAMP")) return absl::OkStatus();
    const std::vector<std::string> cells = absl::StrSplit(text, ',');
    std::tm day{};
    double seconds = 0;
    int64_t input = 0, output = 0;
    if (cells.size() != 3 || !absl::SimpleAtoi(cells[1], &input) || !absl::SimpleAtoi(cells[2], &output) || input < 1 ||
        output < 0 || std::max(input, output) > kMostTokens)
      return line.Wrong(StrCat("not TIMESTAMP,ContextTokens,GeneratedTokens: ", Printable(text, 60)));
    const char* const rest = strptime(cells[0].c_str(), "%Y-%m-%d %H:%M:", &day);
    if (rest == nullptr || !absl::SimpleAtod(rest, &seconds) || !(seconds >= 0 && seconds < 61))
      return line.Wrong(StrCat("not a time: ", Printable(cells[0], 40)));
    Prompt prompt{.tokens = input, .output_tokens = std::max<int64_t>(1, output)};
    const double ms = (static_cast<double>(timegm(&day)) + seconds) * 1000;
    BATON_RETURN_IF_ERROR(line.SetTime(ms, first_ms, last_ms, prompt));
    prompt.pieces.push_back({options.seed * 0x9e3779b97f4a7c15 + 2 * prompts.size(), input});
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  }

  absl::Status Custom(const std::string& text, const Line& line) {
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
      BATON_ASSIGN_OR_RETURN(const double output, line.Number(row, "output_tokens", "", 1, kMostTokens));
      prompt.output_tokens = static_cast<int64_t>(output);
    }
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  }
};

// The first two turns of every conversation, as others measure it: the answer's length is a guess of four bytes a
// token.
absl::Status ReadShareGpt(std::istream& in, Reading& reading) {
  const BenchOptions& o = reading.options;
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
    reading.prompts.push_back(std::move(prompt));
    if (static_cast<int64_t>(reading.prompts.size()) == o.num_prompts) break;
  }
  return absl::OkStatus();
}

absl::Status ReadLines(std::istream& in, Reading& reading) {
  const std::string& name = reading.options.dataset_name;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (static_cast<int64_t>(reading.prompts.size()) == reading.options.num_prompts) break;
    while (text.ends_with('\r') || text.ends_with(' ')) text.pop_back();
    if (text.empty()) continue;
    const Line line(reading.options, number);
    absl::Status status = name == "custom"  ? reading.Custom(text, line)
                          : name == "azure" ? reading.Azure(text, line)
                                            : reading.Trace(text, line);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const BenchOptions& options) {
  if (options.dataset_path.empty())
    return absl::InvalidArgumentError(StrCat("--dataset-name ", options.dataset_name, " needs --dataset-path"));
  std::ifstream in(options.dataset_path);
  if (!in) return absl::NotFoundError(StrCat("--dataset-path: cannot read ", options.dataset_path));
  Reading reading{options};
  BATON_RETURN_IF_ERROR(options.dataset_name == "sharegpt" ? ReadShareGpt(in, reading) : ReadLines(in, reading));
  if (reading.prompts.empty()) return absl::InvalidArgumentError(StrCat(options.dataset_path, ": no request in it"));
  return std::move(reading.prompts);
}

}  // namespace baton::load
