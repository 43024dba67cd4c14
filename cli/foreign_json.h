// Fields of JSON that a server wrote: it may be any server, so a field that is missing or of another kind is nothing.
#pragma once

#include <string>
#include <utility>

#include "common/foreign_text.h"
#include "common/json.h"

namespace baton::cli {

/// The field; null: there is none.
template <class Json>
const Json& FieldOf(const Json& from, const char* name) {
  static const Json none;
  const auto found = from.is_object() ? from.find(name) : from.end();
  return found != from.end() ? *found : none;
}

/// A text, as it was written.
template <class Json>
std::string TextOf(const Json& from, const char* name, std::string otherwise = "") {
  const Json& field = FieldOf(from, name);
  return field.is_string() ? field.template get<std::string>() : std::move(otherwise);
}

/// A text for people: it moves no cursor.
template <class Json>
std::string ShownTextOf(const Json& from, const char* name) {
  return Printable(TextOf(from, name), 500);
}

template <class Json>
double NumberOf(const Json& from, const char* name) {
  const Json& field = FieldOf(from, name);
  return field.is_number() ? field.template get<double>() : 0;
}

template <class Json>
bool IsTrue(const Json& from, const char* name) {
  const Json& field = FieldOf(from, name);
  return field.is_boolean() && field.template get<bool>();
}

/// A list; empty: there is none.
template <class Json>
const Json& ListOf(const Json& from, const char* name) {
  static const Json none = Json::array();
  const Json& field = FieldOf(from, name);
  return field.is_array() ? field : none;
}

}  // namespace baton::cli
