// Tokenizers against transformers, on the corpus: ids, ids without special tokens, special
// tokens as text, decoded text.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace baton {
namespace {

using golden::Case;
using golden::Corpus;

std::string Shown(std::string_view text) {
  nlohmann::json quoted = std::string(text.substr(0, 120));
  return quoted.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + (text.size() > 120 ? "…" : "");
}

std::string Names(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string names;
  for (size_t i = 0; i < ids.size() && i < 60; ++i) names += std::string(tokenizer.IdToToken(ids[i])) + " | ";
  return names;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens, DetokenizeFrom::kTextStart);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Append(id);
  return text + detokenizer.Finish();
}

constexpr size_t kLong = 100'000;  // bytes

void ExpectEncodesAsGolden(const Tokenizer& tokenizer, const std::string& text, const Case& golden) {
  const auto bare = tokenizer.Encode(text, /*add_special_tokens=*/false);
  const auto literal = tokenizer.Encode(text, /*add_special_tokens=*/false, /*parse_special=*/false);
  ASSERT_TRUE(bare.ok() && literal.ok()) << bare.status() << literal.status();
  EXPECT_EQ(golden::HashIds(*bare), golden.bare) << Names(tokenizer, *bare);
  EXPECT_EQ(golden::HashIds(*literal), golden.literal) << Names(tokenizer, *literal);
}

void ExpectDecodesAsGolden(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const Case& golden) {
  for (const bool skip : {false, true}) {
    const std::string decoded = tokenizer.Decode(ids, skip);
    EXPECT_EQ(golden::Hash(decoded), skip ? golden.skipped : golden.kept) << Shown(decoded);
    // Streaming is what Decode does, except where the whole decoder runs: there windows are decoded again and again.
    if (tokenizer.assembly() == TextAssembly::kWhole && ids.size() < 1000) {
      EXPECT_EQ(Streamed(tokenizer, ids, skip), decoded);
    }
  }
}

/// `long_lines`: also the 200 KB ones, which cost most of the time.
void ExpectAsGolden(const Tokenizer& tokenizer, const nlohmann::json& golden, bool long_lines) {
  const std::vector<Case> cases = golden::LoadCases(golden);
  ASSERT_EQ(cases.size(), Corpus().size()) << "run make_golden.py again";
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string& text = Corpus()[i];
    if (text.size() > kLong && !long_lines) continue;
    SCOPED_TRACE("text " + std::to_string(i) + " " + Shown(text));
    const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->size(), cases[i].count);
    EXPECT_EQ(golden::HashIds(*ids), cases[i].ids) << Names(tokenizer, *ids);
    if (const std::string key = std::to_string(i); golden["full"].contains(key)) {
      EXPECT_THAT(*ids, testing::ElementsAreArray(golden["full"][key].get<std::vector<int32_t>>()));
    }
    if (text.size() < kLong) ExpectEncodesAsGolden(tokenizer, text, cases[i]);
    ExpectDecodesAsGolden(tokenizer, *ids, cases[i]);
  }
}

class HfGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = std::string(golden::kFolder) + GetParam();
    auto made = Tokenizer::FromHfDirectory(folder);
    ASSERT_TRUE(made.ok()) << made.status();
    tokenizer_ = *std::move(made);
    golden_ = golden::LoadJson(folder + "/golden.json");
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_P(HfGolden, EncodesAndDecodesAsTransformers) {
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int32_t>());
  ExpectAsGolden(*tokenizer_, golden_, /*long_lines=*/true);
}

INSTANTIATE_TEST_SUITE_P(Text, HfGolden,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "tekken", "dbrx", "gpt-4o", "deepseek-v3",
                                         "spm-bpe", "spm-bpe-no-prefix", "spm-unigram", "wordpiece"));

struct GgufCase {
  const char* name;
  const char* pre;
};

class GgufGolden : public testing::TestWithParam<GgufCase> {
 protected:
  void SetUp() override {
    golden::GgufOf gguf(GetParam().name, GetParam().pre);
    auto made = Tokenizer::FromGguf(gguf.metadata());
    ASSERT_TRUE(made.ok()) << made.status();
    tokenizer_ = *std::move(made);
    golden_ = golden::LoadJson(std::string(golden::kFolder) + GetParam().name + "/golden.json");
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_P(GgufGolden, EncodesAndDecodesAsTransformers) { ExpectAsGolden(*tokenizer_, golden_, /*long_lines=*/false); }

INSTANTIATE_TEST_SUITE_P(Text, GgufGolden,
                         testing::Values(GgufCase{"gpt2", "gpt-2"}, GgufCase{"llama3", "llama-bpe"},
                                         GgufCase{"qwen2", "qwen2"}, GgufCase{"smollm", "smollm"},
                                         GgufCase{"tekken", "tekken"}, GgufCase{"dbrx", "dbrx"},
                                         GgufCase{"gpt-4o", "gpt-4o"}, GgufCase{"deepseek-v3", "deepseek-v3"},
                                         GgufCase{"spm-bpe", ""}, GgufCase{"spm-bpe-no-prefix", ""},
                                         GgufCase{"spm-unigram", ""}));

TEST(DemoModel, EncodesAndDecodesAsTransformers) {
  const golden::DemoModel demo = golden::OpenDemoModel();
  if (demo.file == nullptr) GTEST_SKIP() << demo.path << " is not there (scripts/fetch_model.sh gets it)";
  const auto tokenizer = Tokenizer::FromGguf(demo.metadata);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const nlohmann::json golden = golden::LoadJson(std::string(golden::kFolder) + "smollm2-gguf.json");
  ExpectAsGolden(**tokenizer, golden, /*long_lines=*/true);
}

}  // namespace
}  // namespace baton
