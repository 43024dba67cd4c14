// What a request is refused for before a worker hears of it, and what it is given where it says nothing.
#include "router/request/request_input.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router/request/seen_chats.h"

namespace baton::router {
namespace {

constexpr size_t kCacheBytes = 1 << 20;

class RequestInputTest : public ::testing::Test {
 protected:
  static ModelText Model(const std::string& chat_template = "", const TextFiles& files = {}) {
    return ModelText::Load("tests/data/tiny-llama", chat_template, false, kCacheBytes, files).value();
  }
  static RequestInput Tokens(size_t count) {
    RequestInput input;
    input.prompt = TokensPrompt(count, 7);
    return input;
  }
  static ChatPrompt Chat(const std::string& role, const std::string& text) {
    return {.messages_json = StrCat(R"([{"role":")", role, R"(","content":")", text, "\"}]")};
  }
  /// The field that is at fault; empty: none is.
  std::string AtFault(const ModelText& model, RequestInput input) const {
    const auto prepared = Prepare(model, facts_, config_, std::move(input));
    const auto* error = std::get_if<ApiError>(&prepared);
    return error != nullptr ? error->param : "";
  }
  int32_t MaxTokens(const ModelText& model, RequestInput input) const {
    return *std::get<PreparedRequest>(Prepare(model, facts_, config_, std::move(input))).generation.sampling.max_tokens;
  }

  RouterConfig config_;
  WorkerFacts facts_{.max_model_len = 64, .vocab_size = 548};
};

TEST_F(RequestInputTest, AnAnswersLengthIsTheModelsOrElseTheEndpointsWhereTheClientSaysNone) {
  ModelText model = Model();
  RequestInput input = Tokens(8), long_prompt = Tokens(60);
  EXPECT_EQ(MaxTokens(model, input), 56) << "all of the context";
  input.default_max_tokens = long_prompt.default_max_tokens = 16;
  EXPECT_EQ(MaxTokens(model, input), 16);
  EXPECT_EQ(MaxTokens(model, long_prompt), 4);
  model.defaults.max_tokens = 20;
  EXPECT_EQ(MaxTokens(model, input), 20);
  EXPECT_EQ(MaxTokens(model, long_prompt), 4);
}

TEST_F(RequestInputTest, AnAnswerThatMustBeLongerThanTheContextIsRefusedForThat) {
  RequestInput input = Tokens(60);
  input.sampling.min_tokens = 4;
  EXPECT_EQ(AtFault(Model(), input), "");
  input.sampling.min_tokens = 5;
  EXPECT_EQ(AtFault(Model(), input), "min_tokens");
}

TEST_F(RequestInputTest, ScoresAreBoundedWhereverTheyAreAskedForAndABiasedTokenIsOneThatThereIs) {
  const ModelText model = Model();
  RequestInput answer = Tokens(8), prompt = answer, bias = answer;
  answer.sampling.logprobs = prompt.sampling.prompt_logprobs = config_.max_logprobs;
  bias.sampling.logit_bias = {{547, 1.0F}};
  for (const RequestInput& good : {answer, prompt, bias}) EXPECT_EQ(AtFault(model, good), "");
  answer.sampling.logprobs = prompt.sampling.prompt_logprobs = config_.max_logprobs + 1;
  bias.sampling.logit_bias = {{548, 1.0F}};
  EXPECT_EQ(AtFault(model, answer), "logprobs");
  EXPECT_EQ(AtFault(model, prompt), "prompt_logprobs");
  EXPECT_EQ(AtFault(model, bias), "logit_bias");
}

TEST_F(RequestInputTest, StopStringsAreBoundedInNumberAndInBytes) {
  const ModelText model = Model();
  RequestInput input = Tokens(8);
  input.stop.assign(64, "a");
  EXPECT_EQ(AtFault(model, input), "");
  input.stop.emplace_back("a");
  EXPECT_EQ(AtFault(model, input), "stop");
  input.stop = {std::string((16 << 10) - 1, 'a'), "b"};
  EXPECT_EQ(AtFault(model, input), "");
  input.stop.emplace_back("c");
  EXPECT_EQ(AtFault(model, input), "stop");
}

TEST_F(RequestInputTest, WithoutATokenizerEachFieldThatIsTextIsRefused) {
  const ModelText model = Model("", {.no_tokenizer = true});
  EXPECT_EQ(AtFault(model, Tokens(8)), "");
  RequestInput text, chat, stop = Tokens(8), words = stop, echo = stop;
  text.prompt = TextPrompt{"a"}, chat.prompt = Chat("user", "a");
  stop.stop = {"a"}, words.bad_words = {"a"}, echo.shows_prompt = true;
  EXPECT_EQ(AtFault(model, text), "prompt");
  EXPECT_EQ(AtFault(model, chat), "messages");
  EXPECT_EQ(AtFault(model, stop), "stop");
  EXPECT_EQ(AtFault(model, words), "bad_words");
  EXPECT_EQ(AtFault(model, echo), "echo");
  EXPECT_EQ(std::get<ApiError>(TokenizePrompt(model, text.prompt, "")).param, "prompt") << "also to count its tokens";
}

TEST_F(RequestInputTest, AMessageThatTheTemplateLeavesOutIsRefused) {
  const ModelText model = Model(
      "{% for m in messages %}{% if m.role == 'user' or m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}");
  RequestInput user, critic;
  user.prompt = Chat("user", "a"), critic.prompt = Chat("critic", "a");
  EXPECT_EQ(AtFault(model, user), "");
  EXPECT_EQ(AtFault(model, critic), "messages");
}

TEST_F(RequestInputTest, AChatThatCameBeforeIsKnownToItsOwnSaltAlone) {
  const ModelText model = Model("{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto known = [&](std::string_view salt) {
    Prompt prompt = Chat("user", "hello");
    return TakeSeen(model, prompt, salt);
  };
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(std::holds_alternative<TokenizedPrompt>(TokenizePrompt(model, Chat("user", "hello"), "mine")));
  EXPECT_TRUE(known("mine"));
  EXPECT_FALSE(known("another's"));
  EXPECT_FALSE(known(""));
}

TEST_F(RequestInputTest, ATextThatCameBeforeIsTokenizedAgainForAnotherSalt) {
  const ModelText model = Model();
  const TextPrompt text{"hello hello hello"};
  for (int i = 0; i < 3; ++i) (void)TokenizePrompt(model, text, "mine");
  const int64_t before = model.prompt_ids->counts().tokenized_bytes;
  (void)TokenizePrompt(model, text, "mine");
  EXPECT_EQ(model.prompt_ids->counts().tokenized_bytes, before);
  (void)TokenizePrompt(model, text, "another's");
  EXPECT_GT(model.prompt_ids->counts().tokenized_bytes, before);
}

TEST_F(RequestInputTest, OfTwoVariablesOfATemplateTheRequestsCountsAndAllOthersStand) {
  const std::string shows = "{{ messages[0].content }} {{ mood }} {{ end }}";
  const ModelText model = Model(shows, {.default_chat_template_kwargs = R"({"mood":"glad","end":"!"})"});
  const auto ids = [&](const std::string& variables) {
    ChatPrompt chat = Chat("user", "Hi");
    chat.kwargs_json = variables;
    return std::get<TokenizedPrompt>(TokenizePrompt(model, chat, "")).ids;
  };
  const auto text = [&](const std::string& said) {
    return std::get<TokenizedPrompt>(TokenizePrompt(model, TextPrompt{said, false}, "")).ids;
  };
  EXPECT_EQ(ids("{}"), text("Hi glad !"));
  EXPECT_EQ(ids(R"({"mood":"sad"})"), text("Hi sad !"));
  EXPECT_EQ(ids(R"({"more":1})"), text("Hi glad !"));
}

}  // namespace
}  // namespace baton::router
