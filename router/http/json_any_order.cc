// Schemas whose objects have their properties in any order. A grammar of all orders of n properties is n! long: as with
// xgrammar's field of this name, it is not told which of them have come. There are as many as must be, each may come
// again.
#include <algorithm>
#include <initializer_list>

#include "common/foreign_text.h"
#include "router/http/json_format_writer.h"

namespace baton::router::json {
namespace {

bool IsOneOf(std::string_view key, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, key) != names.end();
}

/// An expression for the name alone.
std::string NamePattern(std::string_view name) {
  std::string out = "^";
  for (const char c : name) {
    if (std::string_view("\\^$.|?*+()[]{}-/").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out + "$";
}

/// Of a member, for messages: a path is made of each, and a name may be as long as a body.
std::string MemberPath(const std::string& path, std::string_view name) {
  return StrCat(path, ".", Printable(name, 64));
}

/// Writes a schema anew, and says what of it has no place in one without an order.
class AnyOrder {
 public:
  MaybeError Write(Element schema, const std::string& path, std::string& out) {
    simdjson::dom::object members;
    if (schema.get_object().get(members)) {
      out += TextOf(schema);
      return std::nullopt;
    }
    Element properties, required, least;
    const bool has_properties = !members["properties"].get(properties) && properties.is_object();
    if (Element e; has_properties && !members["patternProperties"].get(e))
      return NotBuilt(StrCat(path, ".patternProperties"), "this keyword beside properties in any order");
    out += '{';
    for (const auto& [key, value] : members) {
      if (has_properties && IsOneOf(key, {"properties", "required", "minProperties"})) continue;
      if (auto error = WriteMember(key, value, path, out)) return error;
    }
    if (has_properties) {
      if (auto error = WriteProperties(properties, StrCat(path, ".properties"), out)) return error;
      int64_t count = 0;
      simdjson::dom::array names;
      if (!members["required"].get(required) && !required.get_array().get(names))
        count = static_cast<int64_t>(names.size());
      if (int64_t own = 0; !members["minProperties"].get(least) && !least.get_int64().get(own))
        count = std::max(count, own);
      if (count > 0) absl::StrAppend(&out, Comma(out), R"("minProperties":)", count);
    }
    out += '}';
    return std::nullopt;
  }

 private:
  static const char* Comma(const std::string& out) { return out.ends_with('{') || out.ends_with('[') ? "" : ","; }

  MaybeError WriteMember(std::string_view key, Element value, const std::string& path, std::string& out) {
    absl::StrAppend(&out, Comma(out), QuotedText(key), ":");
    const std::string at = MemberPath(path, key);
    simdjson::dom::object named;
    simdjson::dom::array list;
    if (IsOneOf(key, {"patternProperties", "$defs", "definitions"}) && !value.get_object().get(named)) {
      out += '{';
      for (const auto& [name, schema] : named) {
        absl::StrAppend(&out, Comma(out), QuotedText(name), ":");
        if (auto error = Write(schema, MemberPath(at, name), out)) return error;
      }
      out += '}';
    } else if (IsOneOf(key, {"items", "additionalProperties"})) {
      return Write(value, at, out);
    } else if (IsOneOf(key, {"anyOf", "oneOf", "allOf", "prefixItems"}) && !value.get_array().get(list)) {
      out += '[';
      size_t i = 0;
      for (Element schema : list) {
        out += Comma(out);
        if (auto error = Write(schema, StrCat(at, "[", i++, "]"), out)) return error;
      }
      out += ']';
    } else {
      out += TextOf(value);
    }
    return std::nullopt;
  }

  MaybeError WriteProperties(Element properties, const std::string& path, std::string& out) {
    absl::StrAppend(&out, Comma(out), R"("patternProperties":{)");
    for (const auto& [name, schema] : simdjson::dom::object(properties)) {
      absl::StrAppend(&out, Comma(out), QuotedText(NamePattern(name)), ":");
      if (auto error = Write(schema, MemberPath(path, name), out)) return error;
    }
    out += '}';
    return std::nullopt;
  }
};

}  // namespace

MaybeError SchemaInAnyOrder(Element schema, const std::string& path, std::string& out) {
  return AnyOrder().Write(schema, path, out);
}

}  // namespace baton::router::json
