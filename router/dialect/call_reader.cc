#include "router/dialect/call_reader.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "router/dialect/quote_scan.h"

namespace baton::router {
namespace {

/// A JSON object that comes in pieces.
class ObjectScan {
 public:
  void Take(std::string_view text) {
    for (const char c : text) {
      if (std::exchange(escaped_, false)) continue;
      escaped_ = quoted_ && c == '\\';
      if (c == '"') quoted_ = !quoted_;
      if (quoted_) continue;
      if (c == '{' || c == '[') ++depth_;
      if ((c == '}' || c == ']') && --depth_ == 0) ended_ = true;
    }
  }
  bool ended() const { return ended_; }

 private:
  int depth_ = 0;
  bool quoted_ = false, escaped_ = false, ended_ = false;
};

class ForcedCall final : public ToolCallReader {
 public:
  explicit ForcedCall(std::vector<std::string> names) : names_(std::move(names)) {}

  Piece Append(std::string_view text) override {
    held_ += text;
    Call call;
    for (size_t i = 0; i < names_.size() && !named_; ++i) {
      const std::string head = ToolCallHead(names_[i]);
      if (!held_.starts_with(head)) continue;
      named_ = true;
      call.name = names_[i];
      held_ = held_.substr(head.size());
    }
    if (!named_) return {};
    const size_t last_brace = held_.ends_with('}') ? 1 : 0;
    call.arguments = held_.substr(0, held_.size() - last_brace);
    held_ = held_.substr(held_.size() - last_brace);
    arguments_.Take(call.arguments);
    if (call.name.empty() && call.arguments.empty()) return {};
    return {"", {std::move(call)}};
  }

  // Whoever ended the text: a stop token may cut a call, too.
  Piece Finish(bool) override {
    if (!named_ || held_.empty() || arguments_.ended()) return {};
    arguments_.Take(held_);
    return {"", {{0, "", std::exchange(held_, {})}}};
  }

  bool HasWholeCall() const override { return arguments_.ended(); }

 private:
  const std::vector<std::string> names_;
  bool named_ = false;
  std::string held_;  ///< before the name is known: all; then: a brace that may be the answer's last
  ObjectScan arguments_;
};

constexpr std::string_view kWhite = " \t\r\n";

std::string_view WithoutLeadingWhite(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kWhite), text.size()));
}

/// How many bytes at the end of `text` could be the beginning of `mark`.
size_t BeginningOf(std::string_view mark, std::string_view text) {
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

/// One of them begins with the other.
bool Agree(std::string_view a, std::string_view b) { return a.starts_with(b) || b.starts_with(a); }

/// What both forms of answers with calls do: number them, and leave those of other functions alone.
class FreeCalls : public ToolCallReader {
 public:
  FreeCalls(const CallForm& form, std::vector<std::string> names) : form_(form), names_(std::move(names)) {}

  bool HasWholeCall() const override { return calls_ > 0; }

 protected:
  bool IsName(std::string_view name) const { return std::ranges::find(names_, name) != names_.end(); }

  /// False: the text is no calls, or not all of them are of these functions.
  bool TakeCalls(std::string_view text, Piece& piece) {
    WrittenCalls calls = form_.parse(text);
    if (!calls || !std::ranges::all_of(*calls, [&](const WrittenCall& call) { return IsName(call.name); }))
      return false;
    for (WrittenCall& call : *calls)
      piece.calls.push_back({calls_++, std::move(call.name), std::move(call.arguments), piece.text.size()});
    return true;
  }

  const CallForm& form_;
  const std::vector<std::string> names_;
  int32_t calls_ = 0;
};

/// Calls between marks, with text around them. A mark within a string of a call is none.
class MarkedCalls final : public FreeCalls {
 public:
  MarkedCalls(const CallForm& form, std::vector<std::string> names, bool well_formed)
      : FreeCalls(form, std::move(names)), well_formed_(well_formed), scan_(form.quotes) {}

  Piece Append(std::string_view text) override {
    Piece piece;
    held_ += text;
    while (in_call_ ? EndCall(piece) : BeginCall(piece)) {
    }
    return piece;
  }

  Piece Finish(bool whole) override {
    Piece piece;
    if (in_call_ && whole && scan_.quoted() && !well_formed_) {  // a string that never ends: the marks as they stand
      scan_ = QuoteScan({});
      in_call_ = false;
      piece = Append(StrCat(form_.open, std::exchange(held_, {})));
    }
    if (in_call_ && whole) {
      TakeCall(held_, "", piece);  // a model may leave the last mark out
    } else {
      TakeText(in_call_ ? StrCat(form_.open, held_) : held_, piece);
    }
    held_.clear();
    return piece;
  }

 private:
  bool BeginCall(Piece& piece) {
    const size_t at = held_.find(form_.open);
    const size_t text = at != std::string::npos ? at : held_.size() - BeginningOf(form_.open, held_);
    TakeText(std::string_view(held_).substr(0, text), piece);
    held_.erase(0, at != std::string::npos ? text + form_.open.size() : text);
    in_call_ = at != std::string::npos;
    scan_.Restart();
    return in_call_;
  }

  // The mark that ends a call without a mark of its own begins another.
  bool EndCall(Piece& piece) {
    const std::string_view mark = form_.close.empty() ? form_.open : form_.close;
    const std::optional<size_t> at = scan_.Find(held_, mark);
    if (!at) return false;
    TakeCall(held_.substr(0, *at), form_.close, piece);
    held_.erase(0, *at + mark.size());
    in_call_ = form_.close.empty();
    scan_.Restart();
    return true;
  }

  // White space around calls is no text.
  void TakeText(std::string_view text, Piece& piece) {
    if (calls_ > 0 && !text_after_) text = WithoutLeadingWhite(text);
    text_after_ = text_after_ || !text.empty();
    piece.text += text;
  }

  void TakeCall(const std::string& inside, std::string_view close, Piece& piece) {
    if (!TakeCalls(inside, piece)) return TakeText(StrCat(form_.open, inside, close), piece);
    text_after_ = false;
  }

  const bool well_formed_;
  QuoteScan scan_;  ///< of held_, in a call
  bool in_call_ = false, text_after_ = false;
  std::string held_;  ///< in a call: its text; else what could become a mark
};

/// An answer that is calls as a whole, or text as a whole. It is held only while it can be calls.
class WholeCalls final : public FreeCalls {
 public:
  using FreeCalls::FreeCalls;

  Piece Append(std::string_view text) override {
    if (is_text_) return {std::string(text), {}};
    held_ += text;
    if (MayBeCalls()) return {};
    is_text_ = true;
    return {std::exchange(held_, {}), {}};
  }

  Piece Finish(bool whole) override {
    Piece piece;
    if (!is_text_ && whole && TakeCalls(WithoutLead(), piece)) return piece;
    return {std::move(held_), {}};
  }

 private:
  std::string_view WithoutLead() const {
    std::string_view text = WithoutLeadingWhite(held_);
    return text.starts_with(form_.lead) ? WithoutLeadingWhite(text.substr(form_.lead.size())) : text;
  }

  bool MayBeCalls() const {
    std::string_view text = WithoutLead();
    if (form_.lead.starts_with(text)) return true;  // nothing yet, or the beginning of the lead
    if (!text.starts_with(form_.first)) return false;
    text = WithoutLeadingWhite(text.substr(form_.first.size()));
    if (form_.first == "{") {
      constexpr std::string_view kKeys[] = {R"("name")", R"("parameters")", R"("arguments")", R"("type")"};
      return std::ranges::any_of(kKeys, [&](std::string_view key) { return Agree(text, key); });
    }
    const size_t end = text.find_first_of("( \t\r\n");
    if (end != std::string_view::npos) return IsName(text.substr(0, end));
    return std::ranges::any_of(names_, [&](const std::string& name) { return name.starts_with(text); });
  }

  bool is_text_ = false;
  std::string held_;
};

}  // namespace

std::unique_ptr<ToolCallReader> ReadForcedCall(std::vector<std::string> names) {
  return std::make_unique<ForcedCall>(std::move(names));
}

std::unique_ptr<ToolCallReader> ReadFreeCalls(const CallForm& form, std::vector<std::string> names, bool well_formed) {
  if (form.open.empty()) return std::make_unique<WholeCalls>(form, std::move(names));
  return std::make_unique<MarkedCalls>(form, std::move(names), well_formed);
}

std::string NewCallId(const CallForm* form) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  if (form == nullptr || !form->short_ids) return absl::StrFormat("call_%016x%08x", random(), random() >> 32);
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr int kShort = 9;
  std::string id;
  for (int i = 0; i < kShort; ++i) id.push_back(kLetters[random() % kLetters.size()]);
  return id;
}

}  // namespace baton::router
