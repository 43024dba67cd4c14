// What requests ask: drawn from a seed, or read from a file. Lengths are in tokens; made text has about one token a
// word, made ids are exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "load/bench_options.h"

namespace baton::load {

/// Made text or ids that are not written out yet.
struct Piece {
  uint64_t number = 0;  ///< the same number is the same piece
  int64_t tokens = 0;
};

struct Prompt {
  std::string text;
  std::vector<Piece> pieces{};   ///< of DrawPrompts: what comes behind the text
  std::vector<int32_t> ids{};    ///< in place of the text, completions only
  std::string messages{};        ///< a JSON array in place of the text, chats only
  bool verse = false;            ///< its made text stands in lines
  int64_t tokens = 0;            ///< as wanted or recorded; 0: only the server knows
  int64_t output_tokens = 0;     ///< at least 1
  std::optional<Duration> at{};  ///< of a trace: when it came, from the first one on
};

/// InvalidArgument names flag, or file:line and what is wrong there. NotFound: no such file. `note`, if any, becomes a
/// line to tell when a file has fewer requests than --num-prompts: how many were read, and skipped for what.
absl::StatusOr<std::vector<Prompt>> MakePrompts(const BenchOptions& options, std::string* note = nullptr);
/// The same, with made prompts as pieces: a long trace takes little memory.
absl::StatusOr<std::vector<Prompt>> DrawPrompts(const BenchOptions& options, std::string* note = nullptr);
/// Its pieces become text, or ids below `vocab_size`.
void WriteOut(int64_t vocab_size, Prompt& prompt);

/// One piece of made text or ids, by its own number: the same number is the same piece. Ends with a space.
void AppendMade(uint64_t piece, int64_t tokens, int64_t vocab_size, Prompt& prompt);

/// The lines of a file, with made prompts as pieces: sharegpt, custom, mooncake, timed_trace, azure.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const BenchOptions& options, std::string* note = nullptr);

}  // namespace baton::load
