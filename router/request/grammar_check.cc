#include "router/request/grammar_check.h"

#include <chrono>
#include <utility>

#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

absl::StatusOr<std::shared_ptr<const GrammarCompiler>> MakeCompiler(const Tokenizer& tokenizer) {
  BATON_ASSIGN_OR_RETURN(auto compiler, GrammarCompiler::Make(tokenizer, tokenizer.eos_ids(), tokenizer.vocab_size()));
  return std::shared_ptr<const GrammarCompiler>(std::move(compiler));
}

}  // namespace

GrammarCheck::GrammarCheck(const Tokenizer& tokenizer)
    : compiler_(std::async(std::launch::async, [&tokenizer] { return MakeCompiler(tokenizer); }).share()) {}

std::optional<ApiError> GrammarCheck::Check(const Grammar& grammar, const std::string& field,
                                            const std::string& their_digest) {
  if (grammar.text.size() > kMaxBytes) {
    return BadRequest(
        StrCat("`", field, "` is a grammar of ", grammar.text.size(), " bytes, at most ", kMaxBytes, " are possible."),
        field);
  }
  const auto& compiler = compiler_.get();
  if (!compiler.ok()) return FromStatus(compiler.status());
  const std::string& digest = (*compiler)->digest();
  if (their_digest.empty()) {
    return FromStatus(absl::UnimplementedError(
        StrCat("`", field, "` needs workers that have the model's tokenizer, and these have none.")));
  }
  if (their_digest != digest) {
    return FromStatus(absl::FailedPreconditionError(
        StrCat("`", field, "`: the workers' tokenizer (", their_digest, ") is not this router's (", digest, ").")));
  }
  std::string key = StrCat(static_cast<int>(grammar.kind), grammar.text);
  if (IsKnown(key)) return std::nullopt;
  const auto begun = std::chrono::steady_clock::now();
  const auto matcher = (*compiler)->Compile(grammar.kind, grammar.text);
  Count(matcher.ok(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  if (!matcher.ok()) return BadRequest(StrCat("`", field, "`: ", matcher.status().message(), "."), field);
  Keep(std::move(key));
  return std::nullopt;
}

bool GrammarCheck::IsKnown(const std::string& key) {
  std::lock_guard lock(mutex_);
  const bool known = good_.contains(key);
  counts_.known += known;
  return known;
}

void GrammarCheck::Count(bool compiled, double seconds) {
  std::lock_guard lock(mutex_);
  ++(compiled ? counts_.compiled : counts_.refused);
  counts_.compile_s += seconds;
}

GrammarCounts GrammarCheck::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void GrammarCheck::Keep(std::string key) {
  std::lock_guard lock(mutex_);
  if (!good_.insert(key).second) return;
  kept_bytes_ += key.size();
  order_.push_back(std::move(key));
  for (; kept_bytes_ > kKeptBytes; order_.pop_front()) {
    kept_bytes_ -= order_.front().size();
    good_.erase(order_.front());
  }
}

}  // namespace baton::router
