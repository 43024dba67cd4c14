// What the router reads of a model, and what is read from elsewhere instead.
#include "router/request/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/json.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

using testing::HasSubstr;

/// A folder with the files of the tiny model, but for its defaults of sampling.
class ModelTextOf : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(StrCat("tests/data/tiny-llama/", file), StrCat(folder_, "/", file));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = StrCat(folder_, "/", name);
    std::ofstream(path) << text;
    return path;
  }
  /// What a chat is rendered to by the template `given`, or why there is none.
  std::string Rendered(const std::string& given) {
    const auto model = ModelText::Load(folder_, given, true, 0);
    if (!model.ok()) return std::string(model.status().message());
    return *model->chat_template->Render({.messages_json = R"([{"role":"user","content":"hello"}])"});
  }
  /// The default of the temperature, 0 where there is none; or why the model is not read.
  std::string Temperature(bool use_own, const TextFiles& elsewhere = {}) {
    const auto model = ModelText::Load(folder_, "", use_own, 0, elsewhere);
    if (!model.ok()) return std::string(model.status().message());
    return StrCat(model->defaults.temperature.value_or(0));
  }

  const std::string folder_ = StrCat(testing::TempDir(), "baton_model_text_", getpid());
};

TEST_F(ModelTextOf, AChatTemplateIsAFileOrTheTextItself) {
  EXPECT_EQ(Rendered(Write("one.jinja", "file {{ messages[0].content }}")), "file hello");
  EXPECT_EQ(Rendered("text {{ messages[0].content }}"), "text hello");
  EXPECT_EQ(Rendered(Write("{odd}", "braces {{ messages[0].content }}")), "braces hello") << "a file may be named so";
  EXPECT_THAT(Rendered(StrCat(folder_, "/none.jinja")), HasSubstr("--chat-template"));
  EXPECT_THAT(Rendered("{% if %}"), HasSubstr("--chat-template {% if %}: "));
}

TEST_F(ModelTextOf, DefaultsOfSamplingAreItsOwnWhereItHasThemAndTheyAreWanted) {
  EXPECT_EQ(Temperature(true), "0") << "it has none";
  Write("generation_config.json", R"({"temperature": 0.5})");
  EXPECT_EQ(Temperature(true), "0.5");
  EXPECT_EQ(Temperature(false), "0");
  Write("generation_config.json", R"({"temperature": -1})");
  EXPECT_THAT(Temperature(true), HasSubstr("generation_config.json: "));
  EXPECT_EQ(Temperature(false), "0") << "what is not wanted is not read";
}

TEST_F(ModelTextOf, DefaultsOfSamplingThatAreNamedGoBeforeItsOwnAndMustBeThere) {
  Write("generation_config.json", R"({"temperature": 0.5})");
  const std::string other = StrCat(folder_, "/other");
  EXPECT_EQ(Temperature(false, {.generation_config = other}),
            StrCat("--generation-config ", other, ": there is no ", other, "/generation_config.json"));
  std::filesystem::create_directory(other);
  Write("other/generation_config.json", R"({"temperature": 0.25})");
  for (const bool use_own : {true, false}) EXPECT_EQ(Temperature(use_own, {.generation_config = other}), "0.25");
  EXPECT_EQ(Temperature(true, {.override_generation_config = R"({"temperature": 2})"}), "2");
  EXPECT_EQ(Temperature(true, {.override_generation_config = R"({"top_k": 2})"}), "0.5");
}

TEST_F(ModelTextOf, ItIsCalledAsItsFolderHoweverThePathEnds) {
  const std::string name = std::filesystem::path(folder_).filename();
  for (const char* end : {"", "/", "//", "/."}) {
    const auto model = ModelText::Load(folder_ + end, "", false, 0);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->name, name) << end;
  }
}

// By it a text is too long before it is tokenized.
TEST_F(ModelTextOf, ItsLongestTokenMayBeItsLast) {
  const size_t before = ModelText::Load(folder_, "", false, 0)->longest_token;
  std::ifstream in(StrCat(folder_, "/tokenizer.json"));
  nlohmann::json tokenizer = nlohmann::json::parse(in);
  const std::string longest = StrCat("<|", std::string(before, 'x'), "|>");
  tokenizer["added_tokens"].push_back({{"id", ModelText::Load(folder_, "", false, 0)->tokenizer->vocab_size()},
                                       {"content", longest},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  Write("tokenizer.json", tokenizer.dump());
  EXPECT_EQ(ModelText::Load(folder_, "", false, 0)->longest_token, longest.size());
}

TEST_F(ModelTextOf, VariablesOfTheTemplateThatAreNoObjectAreRefused) {
  for (const char* given : {"[1]", "7", "{"}) {
    const auto model = ModelText::Load(folder_, "", false, 0, {.default_chat_template_kwargs = given});
    EXPECT_EQ(model.status().message(), StrCat("--default-chat-template-kwargs: ", given, " is no JSON object"));
  }
}

}  // namespace
}  // namespace baton::router
