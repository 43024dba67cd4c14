// vLLM's structural tags: free text, in which each trigger begins a tag whose inside fits a schema. As Lark: the text
// up to a trigger is one lazy terminal, so that no text goes on behind a trigger as if it were none.
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {
namespace {

struct Tag {
  std::string_view begin, end;
  std::string schema;
};

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

MaybeError ReadTags(const std::string& field, Element list, std::vector<Tag>& out) {
  simdjson::dom::array tags;
  if (list.get_array().get(tags) || tags.size() == 0)
    return BadRequest(StrCat("`", field, ".structures` must be an array of tags."), field);
  for (Element one : tags) {
    Tag& tag = out.emplace_back();
    Element schema;
    if (one["begin"].get_string().get(tag.begin) || tag.begin.empty() || one["end"].get_string().get(tag.end) ||
        one["schema"].get(schema) || !schema.is_object()) {
      return BadRequest(StrCat("`", field, ".structures[", out.size() - 1,
                               "]` needs the strings `begin` and `end` and the object `schema`."),
                        field);
    }
    tag.schema = simdjson::minify(schema);
  }
  return std::nullopt;
}

/// The rules of a trigger: every tag that begins with it.
MaybeError WriteTrigger(const std::string& field, std::string_view trigger, size_t number, std::vector<Tag>& tags,
                        std::string& lark) {
  absl::StrAppend(&lark, "tag_", number, ": text_", number, " (");
  std::string rules;
  for (size_t i = 0, found = 0; i < tags.size(); ++i) {
    if (!tags[i].begin.starts_with(trigger)) continue;
    const std::string rest = Quoted(tags[i].begin.substr(trigger.size()));
    absl::StrAppend(&lark, found++ > 0 ? " | " : "", "tag_", number, "_", i);
    absl::StrAppend(&rules, "tag_", number, "_", i, ": ", rest == "\"\"" ? "" : rest + " ", "inside_", i);
    if (!tags[i].end.empty()) absl::StrAppend(&rules, " ", Quoted(tags[i].end));
    rules += "\n";
  }
  if (rules.empty())
    return BadRequest(StrCat("`", field, ".triggers[", number, "]`: no structure begins with ", trigger, "."), field);
  absl::StrAppend(&lark, ")\ntext_", number, "[lazy]: /(?s:.*)/ ", Quoted(trigger), "\n", rules);
  return std::nullopt;
}

}  // namespace

MaybeError StructuralTagGrammar(const std::string& field, Element e, std::string& lark) {
  Element structures, list;
  simdjson::dom::array triggers;
  std::vector<Tag> tags;
  if (e["structures"].get(structures)) return NotBuilt(field, "a structural tag without `structures`");
  if (auto error = ReadTags(field, structures, tags)) return error;
  if (e["triggers"].get(list) || list.get_array().get(triggers) || triggers.size() == 0)
    return BadRequest(StrCat("`", field, ".triggers` must be an array of strings."), field);
  std::string start = "start: (", rules;
  size_t number = 0;
  for (Element one : triggers) {
    std::string_view trigger;
    if (one.get_string().get(trigger) || trigger.empty())
      return BadRequest(StrCat("`", field, ".triggers` must be an array of strings."), field);
    if (auto error = WriteTrigger(field, trigger, number, tags, rules)) return error;
    absl::StrAppend(&start, number > 0 ? " | " : "", "tag_", number);
    ++number;
  }
  lark = StrCat(start, ")* REST?\nREST: /(?s:.+)/\n", rules);
  for (size_t i = 0; i < tags.size(); ++i) absl::StrAppend(&lark, "inside_", i, ": %json ", tags[i].schema, "\n");
  for (const Tag& tag : tags) {
    bool begun = false;
    for (Element one : triggers) {
      std::string_view trigger;
      begun = begun || (!one.get_string().get(trigger) && tag.begin.starts_with(trigger));
    }
    if (!begun) return BadRequest(StrCat("`", field, "`: no trigger begins ", tag.begin, "."), field);
  }
  return std::nullopt;
}

}  // namespace baton::router::json
