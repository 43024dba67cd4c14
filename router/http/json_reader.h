// Small typed reads over simdjson's DOM for json_request.cc and its parts. Include only from .cc files.
#pragma once

#include <simdjson.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/str_cat.h"
#include "router/http/json_request.h"

namespace baton::router::json {

using Element = simdjson::dom::element;
using MaybeError = std::optional<ApiError>;

const char* TypeName(Element e);
inline ApiError WrongType(std::string_view field, const char* wanted, Element got) {
  return BadRequest(StrCat("`", field, "` must be ", wanted, ", got ", TypeName(got), "."), std::string(field));
}

/// A number that a document cannot hold, an integer beyond 64 bits or a number beyond a double, as the client wrote it.
/// Null: any other value. In the document it is a double.
const std::string* GreatNumber(Element e);
/// A number for messages: of one with very many digits the first ones.
std::string NumberText(Element e);
/// A value's JSON, without white space; great numbers as they were written.
std::string TextOf(Element e);
/// The same for readers of doubles: what is beyond them is the greatest one.
std::string HeldText(Element e);
/// The same, and of whole numbers, too.
std::string TextOfDoubles(Element e);

/// A float can be as great.
inline bool IsFloat(double number) { return std::fabs(number) <= std::numeric_limits<float>::max(); }

/// Each sets `out` and returns nothing, or says what is wrong. JSON null never comes here.
MaybeError Read(std::string_view field, Element e, bool& out);
MaybeError Read(std::string_view field, Element e, int64_t& out);
MaybeError Read(std::string_view field, Element e, int32_t& out);
MaybeError Read(std::string_view field, Element e, uint64_t& out);
MaybeError Read(std::string_view field, Element e, float& out);
MaybeError Read(std::string_view field, Element e, std::string& out);
MaybeError Read(std::string_view field, Element e, std::vector<int32_t>& out);
MaybeError Read(std::string_view field, Element e, std::vector<std::pair<int32_t, float>>& out);  ///< {id: bias}
template <class T>
MaybeError Read(std::string_view field, Element e, std::optional<T>& out) {
  T value{};
  if (auto error = Read(field, e, value)) return error;
  out = std::move(value);
  return std::nullopt;
}

/// A body that must be one JSON object. The parser owns what `root` points to. Of members with one name the last is
/// left. A thread uses one parser for one body after another: for a body of 220 KB a new one allocates 3 MB.
struct Document {
  Document();
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;
  ~Document();
  std::unique_ptr<simdjson::dom::parser> parser;  ///< never null
  Element whole;
  simdjson::dom::object root;
};
MaybeError Parse(std::string_view body, const JsonLimits& limits, Document& out);
/// JSON in a text of a body: sets `out.whole`. False: it is none.
bool ParseInner(std::string_view text, Document& out);

/// Whether `calls`, which stand at `where`, are a list of objects.
MaybeError CheckCalls(const std::string& where, Element calls);
/// Calls of earlier turns as templates take them: clients send arguments as text, templates print objects.
void AppendCalls(Element calls, std::string& out);

/// Views of the document, or of `joined`.
struct LastMessage {
  std::string_view role, text;
  std::string joined;  ///< its parts
};
/// Messages as templates take them: content parts of type text are joined; images and the like are refused.
MaybeError ReadMessages(Element e, std::string& messages_json, LastMessage& last);

/// A member of `stream_options` that changes nothing: events are not padded, as `include_obfuscation` asks.
MaybeError ReadOtherStreamOption(std::string_view key, Element value, CompletionRequest& r);
/// Sampling and answer fields that chat and text completions share. Returns false if the field is not one of them.
bool ReadSharedField(std::string_view key, Element e, CompletionRequest& out, MaybeError& error);
/// Fields that say what an answer must fit. False: not one of them.
inline constexpr std::string_view kGrammarFields[] = {
    "response_format", "structured_outputs", "guided_json",    "guided_json_object",
    "guided_regex",    "guided_choice",      "guided_grammar", "guided_whitespace_pattern"};
/// The Lark grammar of a structural tag, but for its rules of tokens.
MaybeError StructuralTagGrammar(const std::string& field, Element e, std::string& lark, std::vector<TokenRule>& tokens);
bool ReadGrammarField(std::string_view key, Element e, CompletionRequest& out, MaybeError& error);
/// Once all fields are read: a field of how another's JSON is laid out may stand before it.
MaybeError FinishGrammar(CompletionRequest& out);
/// The functions that an answer may call, or must: then its call is the answer's grammar.
MaybeError TakeTools(Element tools, std::optional<Element> choice, CompletionRequest& out);
/// Fields that are refused when they would change the answer. False: not one of them.
bool ReadRefusedField(std::string_view key, Element e, MaybeError& error);
/// Fields that change no answer here, of which only the type is checked. False: not one of them.
bool ReadIgnoredField(std::string_view key, Element e, MaybeError& error);
/// The names of all that these four know, in order.
std::vector<std::string> SharedFieldNames();
/// Of a body of another API: whether a chat takes this field, and the API's answers have a place for what it asks.
bool IsFieldOfAnyApi(std::string_view key);

/// A field that changes nothing: an answer names the first few.
inline void NoteUnknown(CompletionRequest& request, std::string field) {
  constexpr size_t kListed = 16;
  if (request.unknown_fields.size() < kListed) request.unknown_fields.push_back(std::move(field));
}
/// The same of a member of `field`: "stream_options_x". Of a name, so much is said.
inline void NoteUnknownMember(CompletionRequest& request, std::string_view field, std::string_view member) {
  constexpr size_t kLongest = 48;
  NoteUnknown(request, StrCat(field, "_", member.substr(0, kLongest)));
}

/// 400 for a field that nobody reads if one that is read was meant and is not in `body` too: the message names it.
MaybeError MeantField(std::string_view name, const simdjson::dom::object& body, bool chat);

/// The parts of a content that are text, and the field that errors name.
struct PartKinds {
  const char* field;
  std::span<const std::string_view> types;
  bool strings = false;  ///< a part may be its text alone
};
/// Appends the text of a string, or of an array of parts with line ends between. `where`: for people.
MaybeError JoinText(Element content, std::string_view where, const PartKinds& kinds, std::string& text);

}  // namespace baton::router::json
