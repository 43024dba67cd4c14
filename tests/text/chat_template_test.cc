// What a chat template may not do, and which file of a model it comes from.
#include "text/chat_template.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/gguf_tokenizer.h"

namespace baton {
namespace {

using testing::HasSubstr;

constexpr const char* kHello = R"([{"role": "user", "content": "hello"}])";

absl::StatusOr<std::string> RenderWith(std::string_view source, RenderRequest request) {
  const auto chat = ChatTemplate::Create(source, {.bos = "<s>", .eos = "</s>"});
  if (!chat.ok()) return chat.status();
  return (*chat)->Render(request);
}
absl::StatusOr<std::string> RenderHello(std::string_view source) {
  return RenderWith(source, {.messages_json = kHello});
}

std::string MessageOf(const absl::StatusOr<std::string>& result) { return std::string(result.status().message()); }

TEST(ChatTemplate, EndlessLoopsRunOutOfFuel) {
  const auto nested = RenderHello(
      "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% "
      "endfor %}");
  EXPECT_EQ(nested.status().code(), absl::StatusCode::kResourceExhausted) << nested.status();
  EXPECT_THAT(MessageOf(nested), HasSubstr("instructions"));
  const auto recursion = RenderHello("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  EXPECT_FALSE(recursion.ok());
}

TEST(ChatTemplate, LongChatsHaveFuelEnough) {
  const char* chatml =
      "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'x' }}{% endif %}"
      "{{ '<' + m['role'] + '>\n' + m['content'] + '</>' + '\n' }}{% endfor %}";
  std::string messages = "[";
  for (int i = 0; i < 20000; ++i) messages += std::string(i > 0 ? "," : "") + R"({"role": "user", "content": "hi"})";
  const auto text = RenderWith(chatml, {.messages_json = messages + "]"});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 1 + 20000 * std::string("<user>\nhi</>\n").size());
}

TEST(ChatTemplate, AShortChatCostsMicroseconds) {
  const auto chat = ChatTemplate::Create(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
      {});
  ASSERT_TRUE(chat.ok());
  const std::string messages = R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": ")" +
                               std::string(1000, 'x') + R"("}])";
  constexpr int kRounds = 1000;
  const std::clock_t begin = std::clock();
  for (int i = 0; i < kRounds; ++i) ASSERT_TRUE((*chat)->Render({.messages_json = messages}).ok());
  const double us = 1e6 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kRounds;
  std::printf("%.1f us CPU for a chat of 1 KB\n", us);
  EXPECT_LT(us, 500);
}

TEST(ChatTemplate, MemoryIsBounded) {
  for (const char* source : {
           "{% set ns = namespace(s='0123456789abcdef') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% "
           "endfor %}{{ ns.s | length }}",
           "{% set ns = namespace(s='0123456789abcdef') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
           "endfor %}{{ ns.s | length }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | "
           "length }}",
           "{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = ns.l + ['x' * 60000000] %}{% endfor "
           "%}{{ ns.l | length }}",
           "{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = ns.l + [[i] * 2000000] %}{% endfor "
           "%}{{ ns.l | length }}",
           "{% set a = 'xxxxxxxxxxxxxxxx' %}{% for i in range(90) %}{% set b %}{{ a }}{% endset %}{% endfor %}{% macro "
           "m(s, n) %}{{ m(s ~ s, n - 1) if n else s | length }}{% endmacro %}{{ m(a, 40) }}",
           "{{ '{:>1000000000000}'.format('x') }}",
           "{{ 'x' * 10000000000 }}",
           "{{ [1] * 10000000000 }}",
           "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(30) %}{% set ns.s = ns.s.replace('a', "
           "'aaaaaaaaaa') %}{% endfor %}{{ ns.s | length }}",
           "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(30) %}{% set ns.s = ns.s | replace('a', "
           "'aaaaaaaaaa') %}{% endfor %}{{ ns.s | length }}",
           "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(30) %}{% set ns.s = ns.s.join(ns.s | list) %}{% "
           "endfor %}{{ ns.s | length }}",
           "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | "
           "tojson }}",
           "{% for i in range(90000) %}{{ 'x' * 100000 }}{% endfor %}",
           "{{ 'x' | indent(10000000000) }}",
           "{{ range(100000000000) | list | length }}",
           "{{ '%1000000000000s' | format('x') }}",
           "{{ ('%' ~ '9' * 9 ~ 'd') | format(1) }}",
       }) {
    const auto text = RenderHello(source);
    EXPECT_FALSE(text.ok()) << source << " printed " << text->size() << " bytes";
  }
}

TEST(ChatTemplate, NoFilesNoIncludesNoPythonInternals) {
  for (const char* source : {
           "{% include '/etc/passwd' %}",
           "{% import '/etc/passwd' as x %}",
           "{% extends 'other' %}",
           "{{ messages.__class__.__mro__ }}",
           "{{ ''.__class__.__base__.__subclasses__() }}",
           "{{ self.__init__.__globals__ }}",
           "{{ open('/etc/passwd') }}",
       }) {
    const auto text = RenderHello(source);
    EXPECT_FALSE(text.ok()) << source << ": " << *text;
  }
}

TEST(ChatTemplate, DeepNestingIsRefused) {
  const auto deep = [](size_t depth) {
    return R"([{"role": "user", "content": )" + std::string(depth, '[') + std::string(depth, ']') + "}]";
  };
  EXPECT_TRUE(RenderWith("{{ messages }}", {.messages_json = deep(50)}).ok());
  for (size_t depth : {1000, 100000}) {
    const auto text = RenderWith("{{ messages }}", {.messages_json = deep(depth)});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
  }
  EXPECT_FALSE(
      ChatTemplate::Create("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}", {}).ok());
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if true %}";
  EXPECT_FALSE(ChatTemplate::Create(blocks, {}).ok());
}

TEST(ChatTemplate, BadInputIsNamed) {
  const char* source = "{{ messages[0].content }}";
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = "[]"})), HasSubstr("messages is empty"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = "{}"})), HasSubstr("not an array"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = "[1]"})), HasSubstr("messages[0] is not an object"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = "[{]"})), HasSubstr("messages is not JSON"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = kHello, .kwargs_json = "3"})),
              HasSubstr("chat_template_kwargs"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = kHello, .tools_json = "["})),
              HasSubstr("tools is not JSON"));
  EXPECT_THAT(MessageOf(RenderWith(source, {.messages_json = "[{\"content\": \"\xff\"}]"})),
              HasSubstr("messages is not JSON"));
  const auto twice =
      RenderWith(source, {.messages_json = kHello, .add_generation_prompt = true, .continue_final_message = true});
  EXPECT_THAT(MessageOf(twice), HasSubstr("exclude each other"));
  EXPECT_THAT(MessageOf(RenderHello("ok\n{{ messages[ }}")), HasSubstr("line 2"));
  EXPECT_THAT(MessageOf(RenderHello("{{ 'a' + 1 }}")), HasSubstr("line 1"));
}

TEST(ChatTemplate, PlusJoinsTextsAndRefusesWhatIsNone) {
  const auto sum = [](const std::string& terms) { return RenderHello("{{ " + terms + " }}"); };
  EXPECT_EQ(*sum("'é' + messages[0].content + '' + 'é'"), "éhelloé");
  EXPECT_EQ(*sum("'' + ''"), "");
  EXPECT_EQ(*sum("1 + 2 + 0.5"), "3.5");
  EXPECT_EQ(*sum("['a'] + ['b', 1]"), "['a', 'b', 1]");
  EXPECT_THAT(MessageOf(sum("'a' + 'b' + 1")), HasSubstr("unsupported types"));
  EXPECT_THAT(MessageOf(sum("1 + 'a' + 'b'")), HasSubstr("unsupported types"));
}

TEST(ChatTemplate, IntegersHaveAllOfTheirDigits) {
  const std::string fifty(50, '7');
  const std::string messages =
      StrCat(R"([{"role": "assistant", "content": "", "arguments": {"a": 12345678901234567890123,)",
             R"( "b": [-9223372036854775809, {"c": 18446744073709551616}], "d": -)", fifty,
             R"(, "e": "9223372036854775808", "f": 1e22, "g": 18446744073709551615}}])");
  const std::string printed =
      StrCat("{'a': 12345678901234567890123, 'b': [-9223372036854775809, {'c': ", "18446744073709551616}], 'd': -",
             fifty, ", 'e': '9223372036854775808', 'f': 1e+22, 'g': 18446744073709551615}");
  const auto render = [&](const std::string& of) {
    return RenderWith("{% set x = messages[0].arguments %}{{ " + of + " }}", {.messages_json = messages});
  };
  const auto is = [&](const std::string& of, const std::string& text) {
    const auto rendered = render(of);
    ASSERT_TRUE(rendered.ok()) << of << ": " << rendered.status();
    EXPECT_EQ(*rendered, text) << of;
  };
  is("x", printed);
  is("x | tojson", absl::StrReplaceAll(printed, {{"'", "\""}}));
  is("x.d", "-" + fifty);
  is("x.d ~ x.a | string", StrCat("-", fifty, "12345678901234567890123"));
  is("x.a + 1", "12345678901234567890124");
  for (const char* name : {"x.a", "x.b[1].c", "x.d", "x.g"}) {
    is(StrCat(name, " is number"), "True");
    is(StrCat(name, " is integer"), "True");
    is(StrCat(name, " is string"), "False");
    is(StrCat(name, " is mapping"), "False");
  }
  is("x.f is integer", "False");
  EXPECT_EQ(*RenderWith("{{ n }}{{ tools }}", {.messages_json = kHello,
                                               .tools_json = StrCat("[", fifty, "]"),
                                               .kwargs_json = R"({"n": 99999999999999999999})"}),
            StrCat("99999999999999999999[", fifty, "]"));
}

TEST(ChatTemplate, KwargsDoNotReplaceTheMessages) {
  const auto text = RenderWith("{{ messages[0].content }} {{ bos_token }} {{ x }}",
                               {.messages_json = kHello, .kwargs_json = R"({"messages": [], "x": 1})"});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "hello <s> 1");
}

class ModelFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "baton_chat_template_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  std::string Rendered(const std::string& tools = "") {
    const auto chat = ChatTemplate::FromHfDirectory(folder_);
    if (!chat.ok()) return std::string(chat.status().message());
    return (*chat)->Render({.messages_json = kHello, .tools_json = tools}).value_or("error");
  }
  std::string folder_;
};

TEST_F(ModelFiles, ConfigHoldsTheTemplateAndItsTokens) {
  Write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}config{{ pad_token is defined }}", "bos_token": {"content": "<b>"}})");
  EXPECT_EQ(Rendered(), "<b>configFalse");
}

TEST_F(ModelFiles, JinjaFileComesBeforeTheConfig) {
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  Write("chat_template.jinja", "file {{ messages[0].content }}");
  EXPECT_EQ(Rendered(), "file hello");
}

TEST_F(ModelFiles, NamedTemplatesAreChosenByTools) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(Rendered(), "plain");
  EXPECT_EQ(Rendered(R"([{"type": "function"}])"), "tools");
}

TEST_F(ModelFiles, AMissingOrMalformedTemplateIsNamed) {
  EXPECT_EQ(ChatTemplate::FromHfDirectory(folder_).status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(Rendered(), HasSubstr("chat_template is neither"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(Rendered(), HasSubstr("no template named \"default\""));
  Write("tokenizer_config.json", R"({"chat_template": "{% if %}"})");
  EXPECT_THAT(Rendered(), HasSubstr("tokenizer_config.json: chat template, line 1"));
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(Rendered(), HasSubstr("tokenizer_config.json: not JSON"));
}

TEST_F(ModelFiles, AGgufWithoutATemplateIsNotFound) {
  EXPECT_EQ(ChatTemplate::FromGguf(GgufTokenizerMetadata{}, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
