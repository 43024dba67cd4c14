// Values as models write them where they write no JSON: Python's literals, and Gemma's objects with bare keys and texts
// between marks. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"

namespace baton::router {

/// Lists and objects may be as deep as this.
inline constexpr int kDeepestValue = 64;

/// Reads from the front of a text, which must outlive it. White space before everything is skipped.
class LooseReader {
 public:
  explicit LooseReader(std::string_view text) : left_(text) {}

  /// Whether `c` comes next. Take: and goes on behind it.
  bool Sees(char c);
  bool Take(char c);
  bool AtEnd();
  /// Letters, digits, and _ - . in any order; empty: there is none.
  std::string Word();
  /// A string ('…', "…", <escape>…<escape>, <|"|>…<|"|>), number, True, true, None, null, …, list, tuple or object
  /// whose keys may be bare words. Nothing: something else; the reader is of no use then.
  std::optional<nlohmann::ordered_json> Value() { return Value(0); }

 private:
  using Json = nlohmann::ordered_json;
  void SkipWhite();
  std::optional<Json> Value(int depth);
  std::optional<Json> List(char close, int depth);
  std::optional<Json> Object(int depth);
  std::optional<Json> Number();
  /// Nothing: no string comes next, or it has no end.
  std::optional<std::string> String();
  std::optional<std::string> Quoted(char quote);
  void Escape(std::string& out);

  std::string_view left_;
};

}  // namespace baton::router
