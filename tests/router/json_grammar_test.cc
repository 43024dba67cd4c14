// What an answer must fit, as clients say it: each field becomes the grammar that it means, and what is wrong is named.
#include <gtest/gtest.h>

#include "parsed_request.h"

namespace baton::router {
namespace {

struct ReadGrammar {
  GrammarKind kind;
  std::string text, field;
  bool operator==(const ReadGrammar&) const = default;
};
void PrintTo(const ReadGrammar& read, std::ostream* out) {
  *out << static_cast<int>(read.kind) << " " << read.text << " of " << read.field;
}

ReadGrammar GrammarOf(const std::string& more) {
  const CompletionRequest chat = Chat(With(more)), text = Text(TextWith(more));
  const auto& grammar = chat.input.sampling.grammar;
  if (!grammar || !text.input.sampling.grammar) return {};
  EXPECT_EQ(grammar->text, text.input.sampling.grammar->text);
  return {grammar->kind, grammar->text, chat.input.grammar_field};
}

TEST(JsonGrammar, EveryFieldIsTheGrammarThatItMeans) {
  using enum GrammarKind;
  const std::string schema = R"({"type":"object","properties":{"b":{"const":1.0},"a":{"type":"null"}}})";
  const std::string any = R"({"type":"object"})";
  const std::tuple<std::string, GrammarKind, std::string, std::string> cases[] = {
      {R"("response_format":{"type":"json_object"})", kJsonSchema, any, "response_format"},
      {StrCat(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)", schema,
              "}}"),
       kJsonSchema, schema, "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":true,"strict":null}})", kJsonSchema, "true",
       "response_format.json_schema.schema"},
      {StrCat(R"("structured_outputs":{"json":)", schema, "}"), kJsonSchema, schema, "structured_outputs.json"},
      {R"("structured_outputs":{"json":"{\"type\": \"null\"}","regex":null})", kJsonSchema, R"({"type": "null"})",
       "structured_outputs.json"},
      {R"("structured_outputs":{"regex":"a+\\d"})", kRegex, R"(a+\d)", "structured_outputs.regex"},
      {R"("structured_outputs":{"choice":["a","\u00e9\""],"disable_fallback":true})", kChoice, R"(["a","é\""])",
       "structured_outputs.choice"},
      {R"("structured_outputs":{"grammar":"start: \"a\""})", kLark, R"(start: "a")", "structured_outputs.grammar"},
      {R"("structured_outputs":{"json_object":true})", kJsonSchema, any, "structured_outputs.json_object"},
      {R"("response_format":{"type":"json_object","schema":{"enum":[{}]}})", kJsonSchema, R"({"enum":[{}]})",
       "response_format.schema"},
      {R"("structured_outputs":{"disable_any_whitespace":true,"json":{"enum":[1]}})", kJsonSchema,
       R"({"x-guidance":{"whitespace_flexible":false},"enum":[1]})", "structured_outputs.json"},
      {R"("structured_outputs":{"json":" { } ","disable_any_whitespace":true})", kJsonSchema,
       R"({"x-guidance":{"whitespace_flexible":false}} )", "structured_outputs.json"},
      {R"("structured_outputs":{"json":true,"disable_any_whitespace":true})", kJsonSchema,
       R"({"x-guidance":{"whitespace_flexible":false}})", "structured_outputs.json"},
      {R"("structured_outputs":{"whitespace_pattern":"[ \n]?","json":{"enum":[1]}})", kJsonSchema,
       R"({"x-guidance":{"whitespace_pattern":"[ \n]?"},"enum":[1]})", "structured_outputs.json"},
      {R"("guided_whitespace_pattern":"\\s*","guided_json":{})", kJsonSchema,
       R"({"x-guidance":{"whitespace_pattern":"\\s*"}})", "guided_json"},
      {R"("guided_whitespace_pattern":"","response_format":{"type":"json_object"})", kJsonSchema,
       R"({"x-guidance":{"whitespace_pattern":""},"type":"object"})", "response_format"},
      {R"("guided_json":{})", kJsonSchema, "{}", "guided_json"},
      {R"("guided_regex":"a+")", kRegex, "a+", "guided_regex"},
      {R"("guided_choice":["a"])", kChoice, R"(["a"])", "guided_choice"},
      {R"("guided_grammar":"start: /a/")", kLark, "start: /a/", "guided_grammar"},
      {R"("guided_json_object":true)", kJsonSchema, any, "guided_json_object"},
  };
  for (const auto& [more, kind, text, field] : cases)
    EXPECT_EQ(GrammarOf(more), (ReadGrammar{kind, text, field})) << more;
}

TEST(JsonGrammar, WhatAsksForNothingIsNone) {
  for (const char* more :
       {R"("response_format":{"type":"text"})", R"("response_format":null)", R"("structured_outputs":{})",
        R"("structured_outputs":{"json":null,"disable_any_whitespace":false})", R"("guided_json":null)",
        R"("structured_outputs":{"whitespace_pattern":null,"_backend":null,"_backend_was_auto":false})",
        R"("guided_json_object":false,"response_format":{"type":"text"})", R"("structured_outputs":null)"}) {
    EXPECT_EQ(Chat(With(more)).input.sampling.grammar, nullptr) << more;
  }
}

TEST(JsonGrammar, WhatIsWrongIsNamed) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"("response_format":"json")", "response_format", "must be an object, got"},
      {R"("response_format":{})", "response_format.type", "must be a string"},
      {R"("response_format":{"type":"json_object","schema":3})", "response_format.schema", "must be a JSON Schema"},
      {R"("structured_outputs":{"regex":"a","disable_any_whitespace":true})",
       "structured_outputs.disable_any_whitespace", "with a JSON Schema beside it"},
      {R"("guided_json":{},"structured_outputs":{"disable_any_whitespace":true})",
       "structured_outputs.disable_any_whitespace", "with a JSON Schema beside it"},
      {R"("structured_outputs":{"choice":["a"],"whitespace_pattern":"[ ]?"})", "structured_outputs.whitespace_pattern",
       "with a JSON Schema beside it"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":"[ "})", "structured_outputs.whitespace_pattern",
       "it cannot be read: unclosed character class"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":" "})", "structured_outputs.whitespace_pattern",
       "takes the empty text, too"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":3})", "structured_outputs.whitespace_pattern",
       "must be a string"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":"[ ]?","disable_any_whitespace":true})",
       "structured_outputs.whitespace_pattern", "both say what white space JSON has"},
      {R"("guided_whitespace_pattern":"[ ]?")", "guided_whitespace_pattern", "with a JSON Schema beside it"},
      {R"("guided_whitespace_pattern":"a+","guided_json":{})", "guided_whitespace_pattern", "the empty text"},
      {R"("response_format":{"type":"yaml"})", "response_format.type", "got \"yaml\""},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "an object with `schema`"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", "response_format.json_schema.schema",
       "is required"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":"{}"}})",
       "response_format.json_schema.schema", "must be a JSON Schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})",
       "response_format.json_schema.strict", "got"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"name":1}})",
       "response_format.json_schema.name", "got"},
      {R"("structured_outputs":[])", "structured_outputs", "must be an object"},
      {R"("structured_outputs":{"josn":{}})", "structured_outputs.josn", "not supported"},
      {R"("structured_outputs":{"json":3})", "structured_outputs.json", "must be a JSON Schema"},
      {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs.regex",
       "`structured_outputs.regex` and `structured_outputs.json` both say what the answer must fit"},
      {R"("guided_json":{},"response_format":{"type":"json_object"})", "response_format", "`guided_json` both"},
      {R"("guided_choice":["a",1])", "guided_choice", "an array of strings"},
      {R"("guided_choice":"a")", "guided_choice", "an array of strings"},
      {R"("guided_regex":"")", "guided_regex", "empty string"},
      {R"("guided_grammar":{})", "guided_grammar", "must be a string"},
      {R"("guided_jsn":{})", "guided_jsn", "did you mean `guided_json`"},
  };
  for (const auto& [more, param, message] : cases) {
    const ApiError error = ChatError(With(more));
    EXPECT_EQ(error.param, param) << more;
    EXPECT_NE(error.message.find(message), std::string::npos) << more << ": " << error.message;
    EXPECT_EQ(error.http_status, 400);
  }
}

}  // namespace
}  // namespace baton::router
