// Structured outputs from the client's field to the worker's Attach: what compiles is sent on as it is, what does not
// is a 400 that says why.
#include <regex>

#include "proto/worker.pb.h"
#include "router_fixture.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace baton::router {
namespace {

const std::string& Digest() {
  static const std::string digest = [] {
    const auto tokenizer = *Tokenizer::OfModel("tests/data/tiny-llama");
    return (*GrammarCompiler::Make(*tokenizer, tokenizer->eos_ids(), tokenizer->vocab_size()))->digest();
  }();
  return digest;
}

Json ErrorOf(const HttpReply& reply) { return Json::parse(reply.body)["error"]; }

TEST_F(RouterTest, AGrammarThatCompilesGoesToTheWorker) {
  FakeWorker worker({.tokenizer_digest = Digest()});
  Start({&worker});
  for (int again = 0; again < 2; ++again)
    ASSERT_EQ(Complete(R"("max_tokens":2,"guided_json":{"type":"integer"})").status, 200);
  ASSERT_EQ(Complete(R"("max_tokens":2,"structured_outputs":{"choice":["a","b"]})").status, 200);
  ASSERT_EQ(Complete(R"("max_tokens":2)").status, 200);
  const std::vector<v1::Attach> seen = worker.attaches();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].sampling().grammar().kind(), v1::Grammar::KIND_JSON_SCHEMA);
  EXPECT_EQ(seen[1].sampling().grammar().text(), R"({"type":"integer"})");
  EXPECT_EQ(seen[2].sampling().grammar().kind(), v1::Grammar::KIND_CHOICE);
  EXPECT_EQ(seen[2].sampling().grammar().text(), R"(["a","b"])");
  EXPECT_FALSE(seen[3].sampling().has_grammar());
  EXPECT_EQ(Complete(R"("guided_regex":"(a")").status, 400);
  const std::string metrics = Ask(port_, "GET", "/metrics").body;
  for (const auto& [outcome, count] : {std::pair{"compiled", "2"}, {"known", "1"}, {"refused", "1"}}) {
    const std::regex line(StrCat("baton_grammars_total\\{[^}]*outcome=\"", outcome, "\"[^}]*\\} ", count, "\n"));
    EXPECT_TRUE(std::regex_search(metrics, line)) << outcome;
  }
  EXPECT_GT(Metric("baton_grammar_compile_seconds_total"), 0);
}

TEST_F(RouterTest, AGrammarThatDoesNotCompileIsTheClientsToHear) {
  FakeWorker worker({.tokenizer_digest = Digest()});
  Start({&worker});
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {R"("guided_json":{"properties":{"a":{"unevaluatedItems":false}}})", "guided_json",
       "#/properties/a/unevaluatedItems is not supported"},
      {R"("guided_json":"{")", "guided_json", "not JSON"},
      {R"("guided_json":{"type":"strin"})", "guided_json", "strin"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"$ref":"#/$defs/x"}}})",
       "response_format.json_schema.schema", "$defs/x"},
      {R"("guided_regex":"(a")", "guided_regex", "unclosed group"},
      {R"("guided_grammar":"start: b")", "guided_grammar", "b"},
      {R"("guided_choice":[])", "guided_choice", "there is no choice"},
      {StrCat(R"("guided_regex":")", std::string((1 << 20) + 1, 'a'), "\""), "guided_regex", "1048577"},
  };
  for (const auto& [more, param, message] : cases) {
    const HttpReply reply = Complete(more);
    EXPECT_EQ(reply.status, 400) << more.substr(0, 200) << reply.body;
    EXPECT_EQ(ErrorOf(reply)["param"], param) << more.substr(0, 200);
    EXPECT_NE(ErrorOf(reply)["message"].get<std::string>().find(message), std::string::npos) << reply.body;
  }
  EXPECT_TRUE(worker.attaches().empty());
}

TEST_F(RouterTest, AFaultySchemaOfAFunctionIsNamedByItsPlace) {
  FakeWorker worker({.tokenizer_digest = Digest()});
  RouterConfig config;
  config.tool_call_parser = "pythonic";
  Start({&worker}, config);
  const char* good = R"({"type":"object","properties":{"a":{"type":"string"}}})";
  const char* bad = R"({"type":"object","properties":{"a":{"unevaluatedItems":false}}})";
  const auto tools = [&](const char* shape, const char* second) {
    std::string all = "\"tools\":[";
    for (const auto& [name, schema] : {std::pair("f", good), std::pair("g", second), std::pair("h", good)}) {
      std::string one = shape;
      one.replace(one.find("NAME"), 4, name).replace(one.find("SCHEMA"), 6, schema);
      all += StrCat(all.ends_with('[') ? "" : ",", one);
    }
    return all + "]";
  };
  const char* chats = R"({"type":"function","function":{"name":"NAME","parameters":SCHEMA,"strict":true}})";
  const char* responses = R"({"type":"function","name":"NAME","parameters":SCHEMA,"strict":true})";
  const char* messages = R"({"name":"NAME","input_schema":SCHEMA,"strict":true})";
  const std::string asked = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"/v1/chat/completions", StrCat(asked, ",", tools(chats, bad)), "tools[1].function.parameters"},
      {"/v1/chat/completions", StrCat(asked, R"(,"tool_choice":"required",)", tools(chats, bad)),
       "tools[1].function.parameters"},
      {"/v1/chat/completions",
       StrCat(asked, R"(,"tool_choice":{"type":"function","function":{"name":"g"}},)", tools(chats, bad)),
       "tools[1].function.parameters"},
      {"/v1/responses", StrCat(R"("input":"Hi","tool_choice":"required",)", tools(responses, bad)),
       "tools[1].parameters"},
      {"/v1/messages", StrCat(asked, R"(,"max_tokens":9,"tool_choice":{"type":"any"},)", tools(messages, bad)),
       "tools[1].input_schema"},
  };
  for (const auto& [path, body, field] : cases) {
    const HttpReply reply = Ask(port_, "POST", path, StrCat("{", body, "}"));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(ErrorOf(reply)["message"],
              StrCat("`", field, "`: the schema's #/properties/a/unevaluatedItems is not supported."));
    const Json error = ErrorOf(reply);
    EXPECT_EQ(error.value("param", field), field);  // Anthropic's errors have none
  }
  // Of the form of calls itself.
  const char* named = R"({"type":"object","properties":{"a b":{"type":"string"}}})";
  const HttpReply reply = Chat(tools(chats, named));
  EXPECT_EQ(ErrorOf(reply)["param"], "tools[1].function.parameters") << reply.body;
  EXPECT_NE(reply.body.find("the schema of g has #/properties has the name"), std::string::npos) << reply.body;
  EXPECT_EQ(Chat(StrCat(R"("max_tokens":2,"tool_choice":"required",)", tools(chats, good))).status, 200);
}

TEST_F(RouterTest, WorkersWithoutTheTokenizerFollowNoGrammar) {
  FakeWorker none;
  Start({&none});
  const HttpReply refused = Complete(R"("guided_json":{})");
  EXPECT_EQ(refused.status, 501);
  EXPECT_NE(refused.body.find("tokenizer"), std::string::npos) << refused.body;
  EXPECT_EQ(Complete(R"("max_tokens":2)").status, 200);
  server_.reset();
  FakeWorker other({.tokenizer_digest = "of another"});
  Start({&other});
  const HttpReply differs = Complete(R"("guided_json":{})");
  EXPECT_EQ(differs.status, 500);
  EXPECT_NE(differs.body.find("of another"), std::string::npos) << differs.body;
}

}  // namespace
}  // namespace baton::router
