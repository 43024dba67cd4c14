#include "router/http/tool_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace baton::router {
namespace {

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
    if (call.name.empty() && call.arguments.empty()) return {};
    return {"", {std::move(call)}};
  }

  Piece Finish(bool whole) override {
    if (!named_ || whole || held_.empty()) return {};
    return {"", {{0, "", held_}}};
  }

 private:
  const std::vector<std::string> names_;
  bool named_ = false;
  std::string held_;  ///< before the name is known: all; then: a brace that may be the answer's last
};

constexpr std::string_view kOpen = kToolCallTag, kClose = "</tool_call>";

/// How many bytes at the end of `text` could be the beginning of `tag`.
size_t BeginningOf(std::string_view tag, std::string_view text) {
  for (size_t n = std::min(tag.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

class TaggedCalls final : public ToolCallReader {
 public:
  explicit TaggedCalls(std::vector<std::string> names) : names_(std::move(names)) {}

  Piece Append(std::string_view text) override {
    Piece piece;
    size_t from = held_.size() - std::min(held_.size(), kClose.size());  // what is before has no tag
    held_ += text;
    for (;; from = 0) {
      const size_t at = held_.find(in_call_ ? kClose : kOpen, from);
      if (at == std::string::npos) break;
      const std::string before = held_.substr(0, at);
      held_ = held_.substr(at + (in_call_ ? kClose : kOpen).size());
      in_call_ ? TakeCall(before, kClose, piece) : TakeText(before, piece);
      in_call_ = !in_call_;
    }
    if (!in_call_) {
      const size_t kept = BeginningOf(kOpen, held_);
      TakeText(held_.substr(0, held_.size() - kept), piece);
      held_ = held_.substr(held_.size() - kept);
    }
    return piece;
  }

  Piece Finish(bool whole) override {
    Piece piece;
    if (in_call_ && whole) {
      TakeCall(held_, "", piece);  // a model may leave the last tag out
    } else {
      TakeText(in_call_ ? StrCat(kOpen, held_) : held_, piece);
    }
    held_.clear();
    return piece;
  }

 private:
  // White space around calls is no text.
  void TakeText(std::string_view text, Piece& piece) {
    if (calls_ > 0 && !text_after_) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    text_after_ = text_after_ || !text.empty();
    piece.text += text;
  }

  void TakeCall(const std::string& inside, std::string_view close, Piece& piece) {
    std::optional<Call> call = Parse(inside);
    if (!call) return TakeText(StrCat(kOpen, inside, close), piece);
    call->index = calls_++;
    text_after_ = false;
    piece.calls.push_back(*std::move(call));
  }

  std::optional<Call> Parse(const std::string& inside) const {
    constexpr int kDeepest = 64;
    bool too_deep = false;
    const auto look = [&](int depth, nlohmann::ordered_json::parse_event_t, const nlohmann::ordered_json&) {
      too_deep = too_deep || depth > kDeepest;
      return !too_deep;
    };
    const auto json = nlohmann::ordered_json::parse(inside, look, /*allow_exceptions=*/false);
    if (too_deep || !json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
    Call call;
    call.name = json["name"].get<std::string>();
    if (std::find(names_.begin(), names_.end(), call.name) == names_.end()) return std::nullopt;
    const auto arguments = json.contains("arguments") ? json["arguments"] : nlohmann::ordered_json::object();
    if (!arguments.is_object()) return std::nullopt;
    call.arguments = arguments.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return call;
  }

  const std::vector<std::string> names_;
  bool in_call_ = false, text_after_ = false;
  int32_t calls_ = 0;
  std::string held_;  ///< in a call: its text; else what could become a tag
};

}  // namespace

std::unique_ptr<ToolCallReader> ReadForcedCall(std::vector<std::string> names) {
  return std::make_unique<ForcedCall>(std::move(names));
}
std::unique_ptr<ToolCallReader> ReadTaggedCalls(std::vector<std::string> names) {
  return std::make_unique<TaggedCalls>(std::move(names));
}

}  // namespace baton::router
