#include "router/http/tool_call.h"

namespace baton::router {

ToolCallText::Piece ToolCallText::Append(std::string_view text) {
  Piece piece;
  held_ += text;
  for (size_t i = 0; i < names_.size() && !named_; ++i) {
    const std::string head = ToolCallHead(names_[i]);
    if (!held_.starts_with(head)) continue;
    named_ = true;
    piece.name = names_[i];
    held_ = held_.substr(head.size());
  }
  if (!named_) return piece;
  const size_t last_brace = held_.ends_with('}') ? 1 : 0;
  piece.arguments = held_.substr(0, held_.size() - last_brace);
  held_ = held_.substr(held_.size() - last_brace);
  return piece;
}

std::string ToolCallText::Finish(bool whole) { return named_ && !whole ? held_ : std::string(); }

}  // namespace baton::router
