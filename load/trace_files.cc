#include "load/trace_files.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;

/// A year: nobody replays a longer trace, and every time of a shorter one has a Duration.
constexpr double kLongestTraceMs = 366 * 86400e3;

/// What a line of JSON calls things, and in which units.
struct LineForm {
  std::string time, input, output, hashes;
  double ms = 1;           ///< of one of its time's units
  int64_t block_size = 0;  ///< tokens of a hash
};

LineForm FormOf(const Json& row, const BenchOptions& o) {
  LineForm form = {"timestamp", "input_length", "output_length", "hash_ids", 1, 512};
  const bool brief = row.contains("ts") && row.contains("il") && row.contains("ol");
  if (o.dataset_name == "timed_trace" && !brief) {
    form = {o.timed_trace_label_timestamp, o.timed_trace_label_input_length,   o.timed_trace_label_output_length,
            o.timed_trace_label_hash_ids,  1e3 * o.timed_trace_sec_multiplier, o.timed_trace_chunk_hash_size};
  } else if (!row.contains("timestamp") && row.contains("ts")) {
    form = {"ts", "il", "ol", "bh", 1, 1024};
  }
  if (o.trace_block_size > 0) form.block_size = o.trace_block_size;
  return form;
}

/// The number of a block's made text: the same hash is the same text.
absl::StatusOr<uint64_t> BlockPiece(const Json& hash, const DatasetLine& line) {
  if (hash.is_number_integer()) return hash.get<uint64_t>() * 0x9e3779b97f4a7c15 + 1;
  if (hash.is_string()) return std::hash<std::string>{}(hash.get_ref<const std::string&>());
  return line.Wrong(StrCat("a hash is an integer or a text, not ", Printable(hash.dump(), 40)));
}

// A trace's prompt is made of its blocks; what they do not cover is its own.
absl::Status MakeBlocks(const Json& row, const LineForm& form, const BenchOptions& o, const DatasetLine& line,
                        uint64_t number, Prompt& prompt) {
  const std::string& key = form.hashes;
  const int64_t size = form.block_size;
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

}  // namespace

/// Not before the line before.
absl::Status TraceReader::SetTime(double ms, const DatasetLine& line, Prompt& prompt) {
  if (!first_ms_) first_ms_ = last_ms_ = ms;
  if (ms < last_ms_) return line.Wrong(StrCat("time runs backwards by ", last_ms_ - ms, " ms"));
  last_ms_ = ms;
  const double after_ms = (ms - *first_ms_) / options_.trace_speed;
  if (after_ms > kLongestTraceMs) {
    return line.Wrong(StrCat("it is due ", after_ms / 1000, " s after the first line at --trace-speed ",
                             options_.trace_speed, ": at most ", kLongestTraceMs / 1000));
  }
  prompt.at = Duration(static_cast<int64_t>(after_ms * 1e6));
  return absl::OkStatus();
}

absl::StatusOr<Prompt> TraceReader::Json(const std::string& text, const DatasetLine& line, uint64_t number) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json row, line.Object(text));
  Prompt prompt;
  const LineForm form = FormOf(row, options_);
  BATON_ASSIGN_OR_RETURN(const double time, line.Number(row, form.time, 0, 1e15));
  BATON_ASSIGN_OR_RETURN(const double input, line.Number(row, form.input, 1, kMostTokensOfALine));
  BATON_ASSIGN_OR_RETURN(const double output, line.Number(row, form.output, 0, kMostTokensOfALine));
  prompt.tokens = static_cast<int64_t>(input);
  prompt.output_tokens = std::max<int64_t>(1, static_cast<int64_t>(output));
  BATON_RETURN_IF_ERROR(SetTime(time * form.ms, line, prompt));
  BATON_RETURN_IF_ERROR(MakeBlocks(row, form, options_, line, number, prompt));
  return prompt;
}

absl::StatusOr<Prompt> TraceReader::Azure(const std::string& text, const DatasetLine& line, uint64_t number) {
  const std::vector<std::string> cells = absl::StrSplit(text, ',');
  std::tm day{};
  double seconds = 0;
  int64_t input = 0, output = 0;
  if (cells.size() != 3 || !absl::SimpleAtoi(cells[1], &input) || !absl::SimpleAtoi(cells[2], &output) || input < 1 ||
      output < 0 || std::max(input, output) > kMostTokensOfALine)
    return line.Wrong(StrCat("not TIMESTAMP,ContextTokens,GeneratedTokens: ", Printable(text, 60)));
  absl::string_view time = cells[0];
  if (!absl::ConsumeSuffix(&time, "+00:00")) absl::ConsumeSuffix(&time, "Z");  // of 2024; nothing in the trace of 2023
  const std::string utc(time);
  const char* const rest =
      utc.find('\0') == std::string::npos ? strptime(utc.c_str(), "%Y-%m-%d %H:%M:", &day) : nullptr;
  if (rest == nullptr || !absl::SimpleAtod(rest, &seconds) || !(seconds >= 0 && seconds < 61))
    return line.Wrong(StrCat("not a time: ", Printable(cells[0], 40)));
  Prompt prompt{.tokens = input, .output_tokens = std::max<int64_t>(1, output)};
  const int day_of_month = day.tm_mday;
  const double ms = (static_cast<double>(timegm(&day)) + seconds) * 1000;
  if (day.tm_mday != day_of_month) return line.Wrong(StrCat("no such day: ", Printable(cells[0], 40)));
  BATON_RETURN_IF_ERROR(SetTime(ms, line, prompt));
  prompt.pieces.push_back({options_.seed * 0x9e3779b97f4a7c15 + 2 * number, input});
  return prompt;
}

}  // namespace baton::load
