#include "router/http/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "router/json_writer.h"

namespace baton::router {

size_t FirstInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      ++i;
      continue;
    }
    const size_t length = c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      unsigned char low = 0x80, high = 0xBF;
      if (k == 1) {
        if (c == 0xE0) low = 0xA0;   // overlong
        if (c == 0xED) high = 0x9F;  // surrogates
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
      }
      if (next < low || next > high) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

namespace json {

const char* TypeName(Element e) {
  using simdjson::dom::element_type;
  switch (e.type()) {
    case element_type::ARRAY: return "an array";
    case element_type::OBJECT: return "an object";
    case element_type::INT64:
    case element_type::UINT64: return "an integer";
    case element_type::DOUBLE: return "a number";
    case element_type::STRING: return "a string";
    case element_type::BOOL: return "a boolean";
    default: return "null";
  }
}

namespace {

ApiError OutOfRange(std::string_view field, Element number) {
  return BadRequest(StrCat("`", field, "` is out of range: ", NumberText(number), "."), std::string(field));
}

}  // namespace

MaybeError Read(std::string_view field, Element e, bool& out) {
  if (e.get_bool().get(out)) return WrongType(field, "a boolean", e);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, int64_t& out) {
  if (!e.get_int64().get(out)) return std::nullopt;
  double number = 0;  // 1.0 is an integer too, as JSON has no other kind
  if (e.get_double().get(number) || number != std::floor(number)) return WrongType(field, "an integer", e);
  if (std::fabs(number) >= 9e15) return OutOfRange(field, e);
  out = static_cast<int64_t>(number);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, int32_t& out) {
  int64_t wide = 0;
  if (auto error = Read(field, e, wide)) return error;
  if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max())
    return OutOfRange(field, e);
  out = static_cast<int32_t>(wide);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, uint64_t& out) {
  if (!e.get_uint64().get(out)) return std::nullopt;
  int64_t wide = 0;
  if (auto error = Read(field, e, wide)) return error;
  out = static_cast<uint64_t>(wide);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, float& out) {
  double wide = 0;
  if (e.get_double().get(wide)) return WrongType(field, "a number", e);
  if (!IsFloat(wide)) return OutOfRange(field, e);
  out = static_cast<float>(wide);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, std::string& out) {
  std::string_view view;
  if (e.get_string().get(view)) return WrongType(field, "a string", e);
  out = std::string(view);
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, std::vector<int32_t>& out) {
  simdjson::dom::array array;
  if (e.get_array().get(array)) return WrongType(field, "an array of integers", e);
  out.clear();
  for (Element one : array) {
    int32_t id = 0;
    if (auto error = Read(field, one, id)) return error;
    out.push_back(id);
  }
  return std::nullopt;
}

MaybeError Read(std::string_view field, Element e, std::vector<std::pair<int32_t, float>>& out) {
  simdjson::dom::object object;
  if (e.get_object().get(object)) return WrongType(field, "an object of token id to bias", e);
  out.clear();
  for (auto [key, value] : object) {
    int32_t id = 0;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (failed != std::errc() || end != key.data() + key.size()) {
      return BadRequest(StrCat("`", field, "`: \"", key, "\" is not a token id."), std::string(field));
    }
    float bias = 0;
    if (auto error = Read(field, value, bias)) return error;
    out.emplace_back(id, bias);
  }
  return std::nullopt;
}

namespace {

MaybeError JoinParts(simdjson::dom::array parts, std::string_view where, const PartKinds& kinds, std::string& text) {
  bool first = true;
  for (Element part : parts) {
    std::string_view type, one;
    if (kinds.strings && !part.get_string().get(one)) {
      if (!std::exchange(first, false)) text += '\n';
      text += one;
      continue;
    }
    if (part["type"].get_string().get(type))
      return BadRequest(StrCat("`", where, "`: a content part needs a `type`."), kinds.field);
    if (std::ranges::find(kinds.types, type) == kinds.types.end())
      return NotBuilt(kinds.field, StrCat("a content part of type \"", type, "\""));
    if (part[type == "refusal" ? "refusal" : "text"].get_string().get(one))
      return BadRequest(StrCat("`", where, "`: a text part needs a string `text`."), kinds.field);
    if (!std::exchange(first, false)) text += '\n';
    text += one;
  }
  return std::nullopt;
}

}  // namespace

MaybeError JoinText(Element content, std::string_view where, const PartKinds& kinds, std::string& text) {
  std::string_view one;
  simdjson::dom::array parts;
  if (!content.get_string().get(one)) {
    text += one;
    return std::nullopt;
  }
  if (!content.get_array().get(parts)) return JoinParts(parts, where, kinds, text);
  return BadRequest(StrCat("`", where, "` must be a string or an array of parts, got ", TypeName(content), "."),
                    kinds.field);
}

namespace {

constexpr std::string_view kChatParts[] = {"text", "input_text", "output_text", "refusal"};

MaybeError ReadMessage(Element e, size_t number, std::string& out, LastMessage& last) {
  const std::string where = StrCat("messages[", number, "]");
  simdjson::dom::object message;
  if (e.get_object().get(message)) return WrongType(where, "an object", e);
  std::string_view role;
  if (e["role"].get_string().get(role)) return BadRequest(StrCat("`", where, "` needs a string `role`."), "messages");
  if (role.empty())
    return BadRequest(StrCat("`", where, ".role` is empty; chats have system, user, assistant, tool."), "messages");
  last = {role, "", ""};
  JsonWriter w(out);
  w.BeginObject();
  // The two roles whose messages may be calls alone, or a refusal. Templates add the content to strings: it is a text.
  const bool may_be_silent = role == "assistant" || role == "function";
  std::string_view instead;
  if (message["refusal"].get_string().get(instead)) instead = "";
  bool has_content = false;
  for (auto [key, value] : message) {
    simdjson::dom::array parts;
    if (value.is_null() && (key != "content" || !may_be_silent)) continue;
    if (key == "tool_calls" && !value.get_array().get(parts) && parts.size() == 0) continue;  // templates ask for them
    has_content = has_content || key == "content";
    w.Key(key);
    std::string_view content;
    if (key == "tool_calls") {
      if (auto error = CheckCalls(StrCat(where, ".tool_calls"), value)) return error;
      std::string calls;
      AppendCalls(value, calls);
      w.Raw(calls);
    } else if (key != "content") {
      w.Raw(HeldText(value));
    } else if (value.is_null()) {
      w.String(instead);
    } else if (!value.get_string().get(content)) {
      last.text = content;
      w.String(content);
    } else if (!value.get_array().get(parts)) {
      last.joined.clear();
      if (auto error = JoinParts(parts, where, {"messages", kChatParts, true}, last.joined)) return error;
      w.String(last.text = last.joined);
    } else {
      return WrongType(StrCat(where, ".content"), "a string or an array of parts", value);
    }
  }
  if (!has_content && !may_be_silent)
    return BadRequest(StrCat("`", where, "` of role \"", role, "\" needs `content`."), "messages");
  if (!has_content) w.Field("content", instead);
  w.EndObject();
  return std::nullopt;
}

}  // namespace

MaybeError ReadMessages(Element e, std::string& messages_json, LastMessage& last) {
  simdjson::dom::array messages;
  if (e.get_array().get(messages)) return WrongType("messages", "an array", e);
  if (messages.begin() == messages.end())
    return BadRequest("`messages` is empty: at least one message is needed.", "messages");
  messages_json.assign(1, '[');
  size_t number = 0;
  for (Element message : messages) {
    if (number > 0) messages_json.push_back(',');
    if (auto error = ReadMessage(message, number++, messages_json, last)) return error;
  }
  messages_json.push_back(']');
  return std::nullopt;
}

}  // namespace json
}  // namespace baton::router
