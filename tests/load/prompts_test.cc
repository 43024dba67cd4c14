#include "load/prompts.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "common/str_cat.h"

namespace baton::load {
namespace {

using testing::HasSubstr;

// abseil's view does not become the standard string that StartsWith wants.
MATCHER_P(StartsWithText, text, "") { return std::string(arg).starts_with(text); }

class DatasetFile : public testing::Test {
 protected:
  ~DatasetFile() override { unlink(path_.c_str()); }
  absl::StatusOr<std::vector<Prompt>> Read(const std::string& kind, const std::string& text, BenchOptions o = {}) {
    std::ofstream(path_) << text;
    o.dataset_name = kind;
    o.dataset_path = path_;
    return MakePrompts(o);
  }
  const std::string path_ = StrCat(testing::TempDir(), "/prompts.", getpid());
};

int64_t Words(const std::string& text) { return 1 + std::ranges::count(text, ' '); }

TEST(Prompts, RandomLengthsStayInTheirRangeAndTheSeedDecides) {
  BenchOptions o{
      .num_prompts = 200, .seed = 3, .random_input_len = 100, .random_output_len = 10, .random_prefix_len = 20};
  o.random_range_ratio = 0.5;
  const auto prompts = MakePrompts(o), again = MakePrompts(o);
  ASSERT_TRUE(prompts.ok());
  std::set<int64_t> lengths;
  for (size_t i = 0; i < prompts->size(); ++i) {
    const Prompt& p = (*prompts)[i];
    EXPECT_EQ(Words(p.text), p.tokens);
    EXPECT_TRUE(p.tokens >= 70 && p.tokens <= 170 && p.output_tokens >= 5 && p.output_tokens <= 15);
    EXPECT_EQ(p.text, (*again)[i].text);
    EXPECT_EQ(p.text.substr(0, 40), prompts->front().text.substr(0, 40)) << "the prefix is shared";
    lengths.insert(p.tokens);
  }
  EXPECT_GT(lengths.size(), 20u);
  o.seed = 4;
  EXPECT_NE(MakePrompts(o)->front().text, prompts->front().text);
}

TEST(Prompts, IdsHaveExactLengthsAndLieInTheVocabularyAndAreRefusedForChats) {
  BenchOptions o{.num_prompts = 5, .random_input_len = 64, .random_vocab_size = 1000};
  const std::vector<Prompt> made = *MakePrompts(o);
  for (const Prompt& p : made) {
    EXPECT_EQ(p.ids.size(), 64u);
    for (int32_t id : p.ids) EXPECT_TRUE(id >= 100 && id < 900);
  }
  o.backend = "openai-chat";
  EXPECT_THAT(MakePrompts(o).status().message(), HasSubstr("--random-vocab-size 1000"));
}

TEST(Prompts, PrefixRepetitionHasAsManyBeginningsAsAsked) {
  BenchOptions o{.dataset_name = "prefix_repetition", .num_prompts = 40};
  o.prefix_repetition_num_prefixes = 4;
  std::set<std::string> beginnings, whole;
  const std::vector<Prompt> made = *MakePrompts(o);
  for (const Prompt& p : made) {
    EXPECT_EQ(p.tokens, 512);
    beginnings.insert(p.text.substr(0, 200));
    whole.insert(p.text);
  }
  EXPECT_EQ(beginnings.size(), 4u);
  EXPECT_EQ(whole.size(), 40u);
}

TEST(Prompts, VerseStandsInLinesOfWhichAllPromptsShareTheFirst) {
  BenchOptions o{.dataset_name = "sonnet", .num_prompts = 10};
  const std::vector<Prompt> made = *MakePrompts(o);
  std::set<std::string> beginnings, whole;
  const auto words = [](std::string text) {
    std::ranges::replace(text, '\n', ' ');
    return Words(text);
  };
  for (const Prompt& p : made) {
    EXPECT_EQ(words(p.text), 550);
    EXPECT_EQ(p.output_tokens, 150);
    EXPECT_EQ(std::ranges::count(p.text, '\n') + 1, 200 / 8 + (350 + 7) / 8);
    const std::string shared = p.text.substr(0, p.text.find('\n', 800));
    beginnings.insert(shared);
    whole.insert(p.text);
  }
  EXPECT_EQ(beginnings.size(), 1u);
  EXPECT_EQ(whole.size(), 10u);
  o.sonnet_prefix_len = 1000;  // longer than the prompt
  EXPECT_EQ(words(MakePrompts(o)->at(0).text), 550);
}

TEST_F(DatasetFile, AMooncakeTraceKeepsTimesLengthsAndSharedBlocks) {
  const auto got =
      Read("mooncake", R"({"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
{"timestamp": 1500, "input_length": 1000, "output_length": 0, "hash_ids": [7, 10]}
)",
           {.trace_speed = 2});
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 2u);
  const Prompt &a = (*got)[0], &b = (*got)[1];
  EXPECT_EQ(*a.at, Duration::zero());
  EXPECT_EQ(*b.at, std::chrono::milliseconds(500));
  EXPECT_EQ(Words(a.text), 1100);
  EXPECT_EQ(Words(b.text), 1000);
  EXPECT_EQ(b.output_tokens, 1) << "no server answers with nothing";
  auto words = [](const std::string& text, int n) {
    size_t at = 0;
    for (int i = 0; i < n; ++i) at = text.find(' ', at) + 1;
    return at;
  };
  EXPECT_EQ(a.text.substr(0, words(a.text, 512)), b.text.substr(0, words(b.text, 512)));
  EXPECT_NE(a.text.substr(words(a.text, 512), 100), b.text.substr(words(b.text, 512), 100));
}

TEST_F(DatasetFile, ATimedTraceHasShortNamesAndHashesOfBiggerBlocks) {
  const auto got =
      Read("timed_trace", R"({"ts": 0, "il": 1500, "ol": 3, "bh": ["292848572250575933"], "priority": 70})");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(Words(got->front().text), 1500);
}

TEST_F(DatasetFile, AnAzureTraceIsReadWithItsFractions) {
  const auto got = Read("azure",
                        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:59:59.5000000,37,4\r\n"
                        "2023-11-16 19:00:01.0000000,40,5\r\n");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)[1].at->count(), 1'500'000'000);
  EXPECT_EQ((*got)[0].tokens, 37);
  EXPECT_EQ((*got)[1].output_tokens, 5);
}

TEST_F(DatasetFile, ABrokenLineIsNamedWithFileAndNumber) {
  const std::string good = R"({"timestamp": 10, "input_length": 5, "output_length": 5})"
                           "\n\n";
  struct {
    const char *kind, *line, *why;
  } const rows[] = {
      {"mooncake", "{\"timestamp\": 10", "not a JSON object"},
      {"mooncake", "[]", "not a JSON object"},
      {"mooncake", R"({"input_length": 5, "output_length": 5})", "no \"timestamp\""},
      {"mooncake", R"({"timestamp": "x", "input_length": 5, "output_length": 5})", "no number"},
      {"mooncake", R"({"timestamp": 9, "input_length": 5, "output_length": 5})", "time runs backwards by 1 ms"},
      {"mooncake", R"({"timestamp": 1e14, "input_length": 5, "output_length": 5})", "1e+11 s after the first line"},
      {"mooncake", R"({"timestamp": 10, "input_length": 0, "output_length": 5})", "\"input_length\" is 0"},
      {"mooncake", R"({"timestamp": 10, "input_length": 1e99, "output_length": 5})", "\"input_length\""},
      {"mooncake", R"({"timestamp": 10, "input_length": 5, "output_length": -1})", "\"output_length\" is -1"},
      {"mooncake", R"({"timestamp": 10, "input_length": 5, "output_length": 5, "hash_ids": 7})", "no list"},
      {"mooncake", R"({"timestamp": 10, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]})",
       "2 blocks of 512"},
      {"mooncake", R"({"timestamp": 10, "input_length": 5, "output_length": 5, "hash_ids": [[]]})", "a hash is"},
  };
  for (const auto& row : rows) {
    const auto got = Read(row.kind, good + row.line + "\n");
    ASSERT_FALSE(got.ok()) << row.line;
    EXPECT_THAT(got.status().message(), StartsWithText(path_ + ":3: ")) << row.line;
    EXPECT_THAT(got.status().message(), HasSubstr(row.why)) << row.line;
  }
  for (const char* line :
       {"2023-11-16,1,2", "2023-11-16 18:15:46.5,0,2", "2023-11-16 18:15:46.5,1", "2023-11-16 18:15:nan,1,2"})
    EXPECT_THAT(Read("azure", StrCat("TIMESTAMP,a,b\n", line, "\n")).status().message(), StartsWithText(path_ + ":2: "))
        << line;
  EXPECT_THAT(Read("azure", "TIMESTAMP,a,b\n1011-11-16 18:15:46.5,3,4\n2023-11-16 18:15:50.9,3,4\n").status().message(),
              ::testing::AllOf(StartsWithText(path_ + ":3: "), HasSubstr("s after the first line")))
      << "a thousand years have no Duration";
  for (const char* line : {R"({"messages": []})", R"({"prompt": 7})", R"({"prompt": "x", "output_tokens": 0})"})
    EXPECT_THAT(Read("custom", StrCat(line, "\n")).status().message(), StartsWithText(path_ + ":1: ")) << line;
}

TEST_F(DatasetFile, ShareGptGivesFirstQuestionsAndGuessesTheirAnswersLength) {
  const std::string text = R"([{"conversations":[{"from":"human","value":"How far is the moon from here?"},
    {"from":"gpt","value":"About 384,400 km, or 1.3 light seconds."}]},
    {"conversations":[{"value":"short"},{"value":"too"}]},{"conversations":[]}])";
  const auto got = Read("sharegpt", text);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 1u);
  EXPECT_EQ(got->front().text, "How far is the moon from here?");
  EXPECT_EQ(got->front().output_tokens, 9);
  EXPECT_THAT(Read("sharegpt", "{}").status().message(), HasSubstr("not a JSON list"));
  EXPECT_THAT(Read("sharegpt", "[{}]").status().message(), HasSubstr("conversation 1"));
  EXPECT_THAT(Read("sharegpt", R"([{"conversations":[{"value":1},{"value":2}]}])").status().message(),
              HasSubstr("conversation 1"));
}

TEST_F(DatasetFile, AFileWithNothingInItAndOneThatIsNotThereAreRefused) {
  EXPECT_THAT(Read("custom", "\n").status().message(), HasSubstr("no request in it"));
  EXPECT_EQ(MakePrompts({.dataset_name = "custom", .dataset_path = "/nowhere/x"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(MakePrompts({.dataset_name = "azure"}).status().message(), HasSubstr("needs --dataset-path"));
}

}  // namespace
}  // namespace baton::load
