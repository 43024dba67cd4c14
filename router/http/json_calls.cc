// The calls of functions in a chat's earlier turns.
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {
namespace {

// The text of an object becomes that object, no text and null an empty one. All else stays as it is.
void AppendArguments(Element arguments, JsonWriter& w) {
  std::string_view text;
  if (arguments.is_null()) {
    w.Raw("{}");
    return;
  }
  if (arguments.get_string().get(text)) {
    w.Raw(HeldText(arguments));
    return;
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    w.Raw("{}");
    return;
  }
  Document inner;
  if (ParseInner(text, inner) && inner.whole.is_object()) {
    w.Raw(HeldText(inner.whole));
  } else {
    w.String(text);
  }
}

void AppendCall(Element call, JsonWriter& w) {
  simdjson::dom::object members, function;
  if (call.get_object().get(members)) {
    w.Raw(HeldText(call));
    return;
  }
  w.BeginObject();
  for (auto [key, value] : members) {
    w.Key(key);
    if (key != "function" || value.get_object().get(function)) {
      w.Raw(HeldText(value));
      continue;
    }
    w.BeginObject();
    for (auto [name, inner] : function) {
      w.Key(name);
      name == "arguments" ? AppendArguments(inner, w) : void(w.Raw(HeldText(inner)));
    }
    if (function["arguments"].error()) w.Key("arguments").Raw("{}");  // templates print them
    w.EndObject();
  }
  w.EndObject();
}

}  // namespace

MaybeError CheckCalls(const std::string& where, Element calls) {
  simdjson::dom::array array;
  if (calls.get_array().get(array)) return WrongType(where, "an array", calls);
  size_t number = 0;
  for (Element call : array) {
    const std::string one = StrCat(where, "[", number++, "]");
    if (!call.is_object()) return WrongType(one, "an object", call);
  }
  return std::nullopt;
}

void AppendCalls(Element calls, std::string& out) {
  JsonWriter w(out);
  simdjson::dom::array array;
  if (calls.get_array().get(array)) {
    w.Raw(HeldText(calls));
    return;
  }
  w.BeginArray();
  for (Element call : array) AppendCall(call, w);
  w.EndArray();
}

}  // namespace baton::router::json
