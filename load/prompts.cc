#include "load/prompts.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "load/bench_checks.h"

namespace baton::load {
namespace {

// Common words that most vocabularies have whole, with the space before them.
constexpr std::array<std::string_view, 96> kWords = {
    "the",   "of",   "and",   "to",    "in",    "is",   "that",  "for",   "it",   "was",   "on",     "are",
    "as",    "with", "they",  "be",    "at",    "one",  "have",  "this",  "from", "by",    "hot",    "but",
    "some",  "what", "there", "we",    "can",   "out",  "other", "were",  "all",  "your",  "when",   "up",
    "use",   "word", "how",   "said",  "each",  "she",  "which", "their", "time", "will",  "way",    "about",
    "many",  "then", "them",  "would", "write", "like", "so",    "these", "her",  "long",  "make",   "thing",
    "see",   "him",  "two",   "has",   "look",  "more", "day",   "could", "go",   "come",  "did",    "my",
    "sound", "no",   "most",  "who",   "over",  "know", "water", "than",  "call", "first", "people", "may",
    "down",  "side", "been",  "now",   "find",  "any",  "new",   "work",  "part", "take",  "get",    "place"};

constexpr int64_t kWordsOfALine = 8;

uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

int64_t Around(int64_t length, double ratio, uint64_t draw) {
  const auto low = static_cast<int64_t>(static_cast<double>(length) * (1 - ratio));
  const auto high = static_cast<int64_t>(static_cast<double>(length) * (1 + ratio));
  return std::max<int64_t>(1, low + static_cast<int64_t>(draw % static_cast<uint64_t>(high - low + 1)));
}

// Numbers of pieces: of what is shared, and of each request's own. Neither is the other's.
uint64_t SharedPiece(uint64_t seed, uint64_t number) { return Mixed(Mixed(seed) ^ (2 * number)); }
uint64_t OwnPiece(uint64_t seed, uint64_t number) { return Mixed(Mixed(seed) ^ (2 * number + 1)); }

Prompt RandomPrompt(const BenchOptions& o, const RangeRatio& ratio, uint64_t index) {
  const uint64_t piece = OwnPiece(o.seed, index);
  Prompt prompt;
  prompt.tokens =
      o.random_prefix_len + Around(o.input_len > 0 ? o.input_len : o.random_input_len, ratio.input, Mixed(piece));
  prompt.output_tokens = Around(o.random_output_len, ratio.output, Mixed(piece + 1));
  prompt.pieces = {{SharedPiece(o.seed, 0), o.random_prefix_len}, {piece, prompt.tokens - o.random_prefix_len}};
  return prompt;
}

Prompt PrefixedPrompt(const BenchOptions& o, const RangeRatio&, uint64_t index) {
  const int64_t suffix = o.input_len > 0 ? std::max<int64_t>(1, o.input_len - o.prefix_repetition_prefix_len)
                                         : o.prefix_repetition_suffix_len;
  Prompt prompt;
  prompt.tokens = o.prefix_repetition_prefix_len + suffix;
  prompt.output_tokens = o.prefix_repetition_output_len;
  const uint64_t prefix = index % static_cast<uint64_t>(o.prefix_repetition_num_prefixes);
  prompt.pieces = {{SharedPiece(o.seed, prefix + 1), o.prefix_repetition_prefix_len},
                   {OwnPiece(o.seed, index), suffix}};
  return prompt;
}

Prompt SonnetPrompt(const BenchOptions& o, const RangeRatio&, uint64_t index) {
  const int64_t tokens = o.input_len > 0 ? o.input_len : o.sonnet_input_len;
  const int64_t shared = std::min(o.sonnet_prefix_len, tokens - 1);
  return {.text = {},
          .pieces = {{SharedPiece(o.seed, 0), shared}, {OwnPiece(o.seed, index), tokens - shared}},
          .verse = true,
          .tokens = tokens,
          .output_tokens = o.sonnet_output_len};
}

struct Made {
  std::string_view name;
  Prompt (*make)(const BenchOptions& options, const RangeRatio& ratio, uint64_t index);
};
constexpr Made kMade[] = {{"random", RandomPrompt}, {"prefix_repetition", PrefixedPrompt}, {"sonnet", SonnetPrompt}};

}  // namespace

void AppendMade(uint64_t piece, int64_t tokens, int64_t vocab_size, Prompt& prompt) {
  std::mt19937_64 random(piece);
  if (vocab_size > 0) {  // neither end of the vocabulary: special tokens and single bytes are there
    const int64_t first = vocab_size / 10, count = std::max<int64_t>(1, vocab_size * 8 / 10);
    for (int64_t i = 0; i < tokens; ++i)
      prompt.ids.push_back(static_cast<int32_t>(first + static_cast<int64_t>(random() % static_cast<uint64_t>(count))));
    return;
  }
  for (int64_t i = 0; i < tokens; ++i) {
    const bool new_line = prompt.verse && i % kWordsOfALine == 0;
    if (!prompt.text.empty()) prompt.text += new_line ? '\n' : ' ';
    prompt.text += kWords[random() % kWords.size()];
  }
}

void WriteOut(int64_t vocab_size, Prompt& prompt) {
  for (const Piece& piece : std::exchange(prompt.pieces, {}))
    AppendMade(piece.number, piece.tokens, vocab_size, prompt);
}

absl::StatusOr<std::vector<Prompt>> MakePrompts(const BenchOptions& options, std::string* note) {
  BATON_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, DrawPrompts(options, note));
  for (Prompt& prompt : prompts) WriteOut(options.random_vocab_size, prompt);
  return prompts;
}

absl::StatusOr<std::vector<Prompt>> DrawPrompts(const BenchOptions& options, std::string* note) {
  if (options.random_vocab_size > 0 && IsChat(options)) {
    return absl::InvalidArgumentError(
        StrCat("--random-vocab-size ", options.random_vocab_size, ": chats are text; only completions take token ids"));
  }
  std::vector<Prompt> prompts;
  const auto made = std::ranges::find(kMade, options.dataset_name, &Made::name);
  if (made != std::end(kMade)) {
    BATON_ASSIGN_OR_RETURN(const RangeRatio ratio, ParseRangeRatio(options.random_range_ratio));
    for (int64_t i = 0; i < options.num_prompts; ++i)
      prompts.push_back(made->make(options, ratio, static_cast<uint64_t>(i)));
  } else {
    absl::StatusOr<std::vector<Prompt>> read = ReadPrompts(options, note);
    if (!read.ok()) return read.status();
    prompts = *std::move(read);
  }
  for (Prompt& prompt : prompts) {
    if (options.output_len > 0) prompt.output_tokens = options.output_len;
  }
  return prompts;
}

}  // namespace baton::load
