#include "router/request/bad_words.h"

#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr char kField[] = "bad_words";
constexpr size_t kMostTokens = 4096;     // of all words: each step of the request looks at all of them
constexpr size_t kMostBytes = 64 << 10;  // likewise; looked at before a word is tokenized

std::string AfterSpaces(const std::string& word) {
  const size_t begin = word.find_first_not_of(' ');
  return begin == std::string::npos ? "" : word.substr(begin);
}

}  // namespace

std::optional<ApiError> ReadBadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer,
                                     int32_t vocab_size, std::vector<int32_t>& out) {
  size_t bytes = 0;
  for (const std::string& word : words) bytes += word.size();
  if (bytes > kMostBytes) {
    return BadRequest(StrCat("`bad_words` has ", words.size(), " words of ", bytes, " bytes together, at most ",
                             kMostBytes, " bytes are possible."),
                      kField);
  }
  for (const std::string& word : words) {
    const std::string text = AfterSpaces(word);
    if (text.empty()) return BadRequest("`bad_words` has a word without a letter.", kField);
    std::vector<int32_t> first;
    for (const bool behind_space : {false, true}) {
      absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(behind_space ? " " + text : text, false);
      if (!ids.ok()) return FromStatus(ids.status());
      // Behind a space a word is another token than at the beginning, or the space is a token of its own.
      if (behind_space && (ids->size() != first.size() || ids->empty() || ids->front() == first.front())) continue;
      for (const int32_t id : *ids) {
        if (id >= vocab_size)
          return BadRequest(StrCat("`bad_words`: \"", text, "\" has token ", id, ", the model has ", vocab_size, "."),
                            kField);
      }
      if (ids->empty()) continue;
      out.insert(out.end(), ids->begin(), ids->end());
      out.push_back(-1);
      first = *std::move(ids);
    }
    if (out.size() > kMostTokens) break;
  }
  if (out.size() <= kMostTokens) return std::nullopt;
  return BadRequest(StrCat("`bad_words` has more than ", kMostTokens, " tokens in all."), kField);
}

}  // namespace baton::router
