// Messages of chats: what clients may write in them, and roles that not every chat template knows: they reach the
// model, or the client is told.
#include <gmock/gmock.h>

#include "common/json.h"
#include "parsed_request.h"
#include "router/dialect/message_roles.h"
#include "router/request/request_input.h"

namespace baton::router {
namespace {

constexpr char kAny[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
constexpr char kSome[] =
    "{% for m in messages %}{% if m.role == 'user' or m.role == 'system' %}[{{ m.role }}]{{ m.content }}"
    "{% elif m.role == 'tool' %}[{{ m.content | tojson }}]{% endif %}{% endfor %}";
constexpr char kStrict[] =
    "{% for m in messages %}{% if m.role != 'user' and m.role != \"system\" %}{{ raise_exception('Unexpected role.') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
constexpr char kDevelopers[] =
    "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{{ m.content }}{% endfor %}";

/// Of these roles and contents: JSON.
std::string Messages(const std::vector<std::pair<const char*, const char*>>& messages) {
  std::string out;
  for (const auto& [role, content] : messages)
    out += StrCat(out.empty() ? "" : ",", R"({"role":")", role, R"(","content":")", content, "\"}");
  return StrCat("[", out, "]");
}

/// The prompt that a template makes, or the error.
std::string PromptOf(const char* source, const std::string& messages) {
  auto model = ModelText::Load("tests/data/tiny-llama", "", true, 1 << 20);
  auto made = ChatTemplate::Create(source, TemplateTokens{});
  if (!model.ok() || !made.ok()) return "no model";
  model->chat_template = *std::move(made);
  ChatPrompt chat;
  chat.messages_json = messages;
  const auto prompt = TokenizePrompt(*model, chat, "");
  if (const auto* error = std::get_if<ApiError>(&prompt)) {
    EXPECT_EQ(error->http_status, 400);
    EXPECT_EQ(error->param, "messages");
    return error->message;
  }
  const auto& ids = std::get<TokenizedPrompt>(prompt).ids;
  return model->tokenizer->Decode(std::vector<int32_t>(ids.begin(), ids.end()), false);
}

/// As templates get it.
std::string ContentOf(const std::string& message) {
  const CompletionRequest r = Chat(StrCat(R"({"messages":[)", message, "]}"));
  if (r.prompts.empty()) return "refused";
  return nlohmann::json::parse(std::get<ChatPrompt>(r.prompts[0]).messages_json)[0].value("content", "none");
}

TEST(ChatMessages, ABodyMayBeginWithAByteOrderMark) {
  EXPECT_EQ(Chat(StrCat("\xEF\xBB\xBF", With(R"("n":2)"))).input.sampling.n, 2);
  EXPECT_EQ(ChatError("\xEF\xBB\xBF").message, "The body is empty; a JSON object is expected.");
}

TEST(ChatMessages, PartsMayBeTextsAlone) {
  EXPECT_EQ(
      ContentOf(R"({"role":"user","content":["a",{"type":"text","text":"b"},{"type":"output_text","text":"c"},""]})"),
      "a\nb\nc\n");
  EXPECT_EQ(ChatError(R"({"messages":[{"role":"user","content":["a",3]}]})").param, "messages");
}

TEST(ChatMessages, ARefusalIsWhatAnAssistantSaid) {
  EXPECT_EQ(ContentOf(R"({"role":"assistant","content":null,"refusal":"I will not"})"), "I will not");
  EXPECT_EQ(ContentOf(R"({"role":"assistant","refusal":"I will not"})"), "I will not");
  EXPECT_EQ(ContentOf(R"({"role":"assistant","content":"So","refusal":null})"), "So");
  EXPECT_EQ(ContentOf(R"({"role":"assistant","content":null,"refusal":null})"), "");
}

TEST(ChatMessages, ARoleIsNotEmpty) {
  EXPECT_EQ(ChatError(R"({"messages":[{"role":"","content":"x"}]})").message.substr(0, 28),
            "`messages[0].role` is empty;");
}

TEST(MessageRoles, OthersAreFoundAtTheMessagesAlone) {
  EXPECT_FALSE(HasOtherRole(Messages({{"system", "a"}, {"user", "b"}, {"assistant", "c"}, {"tool", "d"}})));
  EXPECT_FALSE(HasOtherRole(Messages({{"user", R"(\"role\":\"critic\")"}})));
  for (const char* role : {"developer", "function", "critic", "User", "users", ""})
    EXPECT_TRUE(HasOtherRole(Messages({{"user", "a"}, {role, "b"}}))) << role;
}

TEST(MessageRoles, ADeveloperIsTheSystemWhereTheTemplateKnowsNone) {
  const std::string messages =
      Messages({{"system", "one"}, {"user", "two"}, {"developer", "three"}, {"system", ""}, {"user", "four"}});
  EXPECT_EQ(PromptOf(kSome, messages), "[system]one\n\nthree[user]two[user]four");
  EXPECT_EQ(PromptOf(kStrict, messages), "[system]one\n\nthree[user]two[user]four");
  EXPECT_EQ(PromptOf(kAny, messages), "[system]one\n\nthree[user]two[user]four");
  EXPECT_EQ(PromptOf(kDevelopers, messages), "onetwoDthreefour");
  const std::string systems = Messages({{"system", "one"}, {"user", "two"}, {"system", "three"}});
  EXPECT_EQ(PromptOf(kAny, systems), "[system]one[user]two[system]three") << "nobody asked for anything else";
}

// What every message, or every member of one, is compared with all others for takes minutes.
TEST(MessageRoles, ManyMessagesAndMembersCostNoSquares) {
  const auto made = ChatTemplate::Create("{{ messages | tojson }}", TemplateTokens{});
  ASSERT_TRUE(made.ok());
  std::string messages = R"([{"role":"user","content":"a"})", members = R"([{"role":"b","content":"c")";
  for (int i = 0; i < 100000; ++i) {
    messages += R"(,{"role":"b","content":"c"},{"role":"developer","content":"d"})";
    members += StrCat(R"(,"k)", i, R"(":1)");
  }
  for (const std::string& chat : {messages + "]", members + "}]"}) {
    RenderRequest request{};
    request.messages_json = chat;
    EXPECT_EQ(LeftOutMessage(**made, request), std::nullopt);
  }
}

// No double holds it, and nobody has to.
TEST(MessageRoles, AMessageOfAnotherRoleMayHaveNumbersOfAnySize) {
  const std::string digits(400, '9');
  EXPECT_EQ(PromptOf(kAny, StrCat(R"([{"role":"critic","content":"a","weight":)", digits, "}]")), "[critic]a");
}

TEST(MessageRoles, OtherMessagesStayAsTheyAreWritten) {
  const std::string call =
      R"({"role":"assistant","content":"","tool_calls":[{"function":{"arguments":{"b":"]\\\"},","a":[1e5]}}}]})";
  EXPECT_EQ(WithKnownRoles(StrCat(R"([{"role":"developer","content":"x"},)", call, "]"), "user"),
            StrCat(R"([{"role":"system","content":"x"},)", call, "]"));
}

TEST(MessageRoles, AnyRoleIsTheTemplates) {
  EXPECT_EQ(PromptOf(kAny, Messages({{"user", "a"}, {"critic", "b"}, {"function", "c"}})),
            "[user]a[critic]b[function]c");
  EXPECT_EQ(PromptOf(kSome, Messages({{"user", "a"}, {"critic", "  "}})), "[user]a") << "there is nothing to leave out";
}

TEST(MessageRoles, WhatATemplateLeavesOutOrRefusesIsNamed) {
  for (const char* role : {"critic", "function", "User"}) {
    const std::string messages = Messages({{"user", "a"}, {"system", "b"}, {role, "a"}});
    const std::string has = StrCat("`messages[2]` has the role \"", role, "\"");
    EXPECT_EQ(PromptOf(kSome, messages),
              StrCat(has, ", of which this model's chat template prints no message; it knows system, user, tool."));
    EXPECT_EQ(PromptOf(kStrict, messages),
              StrCat("chat template: Unexpected role. (", has, "; the template knows system, user)"));
  }
  EXPECT_EQ(PromptOf(kStrict, Messages({{"assistant", "a"}})), "chat template: Unexpected role.");
  EXPECT_EQ(
      PromptOf(kSome, R"([{"role":"user","content":"a"},{"role":"critic","role":3,"content":"b"}])"),
      "`messages[1]` has the role \"\", of which this model's chat template prints no message; it knows system, user, "
      "tool.");
}

}  // namespace
}  // namespace baton::router
