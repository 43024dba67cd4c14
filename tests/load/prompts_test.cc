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
  o.random_range_ratio = "0.5";
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

TEST(Prompts, EachOfBothLengthsMayHaveARangeOfItsOwn) {
  BenchOptions o{.num_prompts = 100, .random_input_len = 100, .random_output_len = 100};
  o.random_range_ratio = R"({"input": 0, "output": 0.5})";
  std::set<int64_t> answers;
  const std::vector<Prompt> prompts = *MakePrompts(o);
  for (const Prompt& p : prompts) {
    EXPECT_EQ(p.tokens, 100);
    answers.insert(p.output_tokens);
  }
  EXPECT_GT(answers.size(), 20u);
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

// As `vllm bench serve` reads it: seconds, and 16 tokens a hash, unless its flags say otherwise.
TEST_F(DatasetFile, ATimedTraceIsInSecondsUnderTheNamesThatItsFlagsSay) {
  const char* lines = R"({"timestamp": 61.5, "input_length": 40, "output_length": 3, "hash_ids": [7, 8]}
{"timestamp": 62, "input_length": 40, "output_length": 3, "hash_ids": [7, 9]}
)";
  auto got = Read("timed_trace", lines);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*(*got)[0].at, Duration::zero());
  EXPECT_EQ(*(*got)[1].at, std::chrono::milliseconds(500));
  EXPECT_EQ(Words((*got)[1].text), 40);
  const auto same = [&](const char* kind, const BenchOptions& options) {
    const auto read = Read(kind, lines, options);
    const std::string &a = (*read)[0].text, &b = (*read)[1].text;
    return Words(a.substr(0, static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin())));
  };
  EXPECT_NEAR(same("timed_trace", {}), 17, 1) << "16 words, and what the next has by chance";
  EXPECT_NEAR(same("timed_trace", {.timed_trace_chunk_hash_size = 20}), 21, 1);
  got = Read("mooncake", R"({"timestamp": 1, "input_length": 4, "output_length": 3})"
                         "\n"
                         R"({"timestamp": 1.5, "input_length": 4, "output_length": 3})");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got->back().at, std::chrono::microseconds(500)) << "which counts milliseconds";
  got = Read("timed_trace",
             R"({"t": 100, "in": 5, "out": 2, "h": []})"
             "\n"
             R"({"t": 300, "in": 6, "out": 2})",
             {.timed_trace_sec_multiplier = 0.001,
              .timed_trace_label_timestamp = "t",
              .timed_trace_label_input_length = "in",
              .timed_trace_label_output_length = "out",
              .timed_trace_label_hash_ids = "h"});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got->back().at, std::chrono::milliseconds(200));
  EXPECT_EQ(Words(got->back().text), 6);
  EXPECT_THAT(Read("timed_trace", R"({"time": 1})").status().message(), HasSubstr(":1: no \"timestamp\""));
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

TEST_F(DatasetFile, AnAzureTraceOf2024NamesItsZoneAndAMarkBeforeTheFirstLineIsNoPartOfIt) {
  const auto got = Read("azure",
                        "\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
                        "2024-05-10 00:00:01.009930Z,2399,6\n");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)[1].at->count(), 1'000'000'000);
  for (const std::string time : {"2024-05-10 00:00:01.5+02:00", "2024-05-10 00:00:01.5ZZ"})
    EXPECT_FALSE(Read("azure", time + ",1,2\n").ok()) << time;
  std::string nul = "2024-05-10 00:00:01.5";
  nul.push_back('\0');
  EXPECT_FALSE(Read("azure", nul + "junk,1,2\n").ok());
}

TEST_F(DatasetFile, TheFirstLineOfATraceSaysWhoseItIsAndWhiteSpaceSaysNothing) {
  BenchOptions any;
  any.any_trace = true;
  const std::string line = R"({"timestamp": 1000, "input_length": 5, "output_length": 7})";
  for (const std::string before : {"", "\n\t\n", "  ", "\xEF\xBB\xBF", "\xEF\xBB\xBF\n", "\t \r\n\t"}) {
    const auto json = Read("mooncake", StrCat(before, line, "\t\r\n \t\n", line, " \n"), any);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(json->size(), 2u);
    EXPECT_EQ((*json)[1].output_tokens, 7);
  }
  for (const std::string before : {"", "\n", "\xEF\xBB\xBF", "TIMESTAMP,a,b\n"}) {
    const auto csv = Read("mooncake", StrCat(before, "2023-11-16 19:00:01.0,40,5\n"), any);
    ASSERT_TRUE(csv.ok()) << csv.status();
    EXPECT_EQ((*csv)[0].tokens, 40);
  }
  EXPECT_THAT(Read("mooncake", line + "\n2023-11-16 19:00:01.0,40,5\n", any).status().message(),
              StartsWithText(path_ + ":2: not a JSON object"));
}

TEST_F(DatasetFile, ALineOfBracketsIsRefusedAndNotRecursedInto) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  BenchOptions chat;
  chat.backend = "openai-chat";
  EXPECT_THAT(Read("custom", StrCat(R"({"messages": )", deep, "}\n"), chat).status().message(),
              HasSubstr("not a JSON object"));
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
  for (const char* line : {"2023-11-16,1,2", "2023-11-16 18:15:46.5,0,2", "2023-11-16 18:15:46.5,1",
                           "2023-11-16 18:15:nan,1,2", "2023-02-30 18:15:46.5,1,2"})
    EXPECT_THAT(Read("azure", StrCat("TIMESTAMP,a,b\n", line, "\n")).status().message(), StartsWithText(path_ + ":2: "))
        << line;
  EXPECT_THAT(Read("azure", "TIMESTAMP,a,b\n1011-11-16 18:15:46.5,3,4\n2023-11-16 18:15:50.9,3,4\n").status().message(),
              ::testing::AllOf(StartsWithText(path_ + ":3: "), HasSubstr("s after the first line")))
      << "a thousand years have no Duration";
  for (const char* line : {R"({"messages": []})", R"({"prompt": 7})", R"({"prompt": "x", "output_tokens": 0})"})
    EXPECT_THAT(Read("custom", StrCat(line, "\n")).status().message(), StartsWithText(path_ + ":1: ")) << line;
}

TEST_F(DatasetFile, TheLengthOfAnAnswerIsItsLinesOwnUnlessAFlagSaysOneForAll) {
  const std::string lines = "{\"prompt\":\"a\",\"output_tokens\":7}\n{\"prompt\":\"b\"}\n";
  const auto lengths = [&](int64_t flag) {
    const auto prompts = *Read("custom", lines, {.custom_output_len = flag});
    return std::pair(prompts.at(0).output_tokens, prompts.at(1).output_tokens);
  };
  EXPECT_EQ(lengths(0), std::pair(int64_t{7}, int64_t{256}));
  EXPECT_EQ(lengths(9), std::pair(int64_t{9}, int64_t{9}));
  EXPECT_THAT(Read("custom", lines, {.custom_output_len = -1}).status().message(),
              HasSubstr(":2: no \"output_tokens\""));
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
  BenchOptions folder;
  folder.dataset_name = "sharegpt";
  folder.dataset_path = testing::TempDir();
  EXPECT_THAT(MakePrompts(folder).status().message(), HasSubstr("--dataset-path: cannot read"));
  EXPECT_THAT(Read("sharegpt", "{}").status().message(), HasSubstr("not a JSON list"));
  EXPECT_THAT(Read("sharegpt", "[{}]").status().message(), HasSubstr("conversation 1"));
  EXPECT_THAT(Read("sharegpt", R"([{"conversations":[{"value":1},{"value":2}]}])").status().message(),
              HasSubstr("conversation 1"));
}

// Each conversation that no request can be made of is counted by why, and said where too few are left.
TEST_F(DatasetFile, OfConversationsThatAreSkippedTheNumbersAndReasonsAreSaid) {
  const auto turns = [](size_t question, size_t answer) {
    return StrCat(R"({"conversations":[{"value":")", std::string(question, 'q'), R"("},{"value":")",
                  std::string(answer, 'a'), R"("}]})");
  };
  const std::string skipped = StrCat(turns(15, 40), ",", turns(4097, 40), ",", turns(16, 15), ",", turns(4000, 4193),
                                     R"(,{"conversations":[{"value":"a question alone?"}]},{"conversations":[]},7,{},)",
                                     R"({"conversations":[{"value":"A whole question?"},{"value":null}]})");
  const char* reasons =
      "has no list \"conversations\"), 2 with fewer than two turns, 1 with a first turn of fewer than 16 bytes, 1 with "
      "a "
      "first turn of more than 4096 bytes, 1 with an answer of fewer than 16 bytes, 1 with more than 8192 bytes in "
      "both "
      "turns";
  EXPECT_THAT(Read("sharegpt", StrCat("[", skipped, "]")).status().message(),
              ::testing::AllOf(StartsWithText(path_ + ": no request in it: 9 conversations read, 0 usable; "),
                               HasSubstr("skipped: 3 broken (the first: conversation 7 has"), HasSubstr(reasons)));
  std::string note;
  std::ofstream(path_) << "[" << turns(16, 16) << "," << turns(4000, 4192) << "," << skipped << "]";
  const BenchOptions options{.dataset_name = "sharegpt", .dataset_path = path_, .num_prompts = 3};
  const auto got = MakePrompts(options, &note);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 2u);
  EXPECT_EQ((*got)[0].output_tokens, 4);
  EXPECT_EQ((*got)[1].output_tokens, 1048);
  EXPECT_THAT(
      note, ::testing::AllOf(StartsWithText(path_ + ": 2 requests, --num-prompts 3: 11 conversations read, 2 usable; "),
                             HasSubstr("conversation 9 has no list"), HasSubstr(reasons)));
  note.clear();
  BenchOptions enough = options;
  enough.num_prompts = 2;
  EXPECT_TRUE(MakePrompts(enough, &note).ok());
  EXPECT_EQ(note, "");
  enough.sharegpt_output_len = 7;  // then the answer's own length does not matter
  enough.num_prompts = 4;
  EXPECT_EQ(MakePrompts(enough, &note)->size(), 4u);
}

TEST_F(DatasetFile, AFileWithFewerLinesThanRequestsAreWantedSaysSo) {
  std::string note;
  std::ofstream(path_) << R"({"prompt": "one"})" << "\n" << R"({"prompt": "two"})" << "\n";
  EXPECT_TRUE(MakePrompts({.dataset_name = "custom", .dataset_path = path_, .num_prompts = 5}, &note).ok());
  EXPECT_EQ(note, path_ + ": 2 requests, --num-prompts 5");
}

TEST_F(DatasetFile, AFileWithNothingInItAndOneThatIsNotThereAreRefused) {
  EXPECT_THAT(Read("custom", "\n").status().message(), HasSubstr("no request in it"));
  EXPECT_EQ(MakePrompts({.dataset_name = "custom", .dataset_path = "/nowhere/x"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(MakePrompts({.dataset_name = "azure"}).status().message(), HasSubstr("needs --dataset-path"));
}

}  // namespace
}  // namespace baton::load
