// The detokenizer on sequences that no tokenizer would make: any ids, in any order.
#include "text/detokenizer.h"

#include <map>
#include <random>

#include "common/utf8.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace baton {
namespace {

const char* const kAll[] = {"gpt2",        "llama3",   "qwen2", "smollm", "tekken", "spm-bpe", "spm-bpe-no-prefix",
                            "spm-unigram", "wordpiece"};

const Tokenizer& Load(const std::string& name) {
  static auto* const loaded = new std::map<std::string, std::unique_ptr<Tokenizer>>;
  std::unique_ptr<Tokenizer>& entry = (*loaded)[name];
  if (!entry) {
    auto made = Tokenizer::FromHfDirectory(golden::kFolder + name);
    if (!made.ok()) throw std::runtime_error(std::string(made.status().message()));
    entry = *std::move(made);
  }
  return *entry;
}

std::vector<int32_t> RandomIds(const Tokenizer& tokenizer, std::mt19937& random) {
  std::vector<int32_t> ids(random() % 40);
  // Byte tokens are the first in these vocabularies; drawn often, they make broken and whole code points.
  for (int32_t& id : ids)
    id = static_cast<int32_t>(random() % (random() % 2 == 0 ? 270 : static_cast<uint32_t>(tokenizer.vocab_size()) + 2));
  return ids;
}

class AnyIds : public testing::TestWithParam<const char*> {};

TEST_P(AnyIds, IncrementsAreValidUtf8AndAddUpToDecode) {
  const Tokenizer& tokenizer = Load(GetParam());
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    const std::vector<int32_t> ids = RandomIds(tokenizer, random);
    const bool skip = random() % 2 == 0;
    Detokenizer detokenizer(tokenizer, skip, DetokenizeFrom::kTextStart);
    std::string text;
    for (int32_t id : ids) {
      const std::string more = detokenizer.Append(id);
      ASSERT_TRUE(IsUtf8(more));
      text += more;
    }
    const std::string tail = detokenizer.Finish();
    ASSERT_TRUE(IsUtf8(tail));
    ASSERT_EQ(text + tail, tokenizer.Decode(ids, skip)) << "round " << round;
  }
}

TEST_P(AnyIds, WithAStopMatcherNothingOfAStopStringIsShown) {
  const Tokenizer& tokenizer = Load(GetParam());
  std::mt19937 random(3);
  for (int round = 0; round < 1500; ++round) {
    const std::vector<int32_t> ids = RandomIds(tokenizer, random);
    const std::string whole = tokenizer.Decode(ids, false);
    if (whole.size() < 4) continue;
    size_t begin = random() % (whole.size() - 3);
    size_t end = begin + 1 + random() % 3;
    while (begin > 0 && (whole[begin] & 0xC0) == 0x80) --begin;
    while (end < whole.size() && (whole[end] & 0xC0) == 0x80) ++end;
    const std::string stop = whole.substr(begin, end - begin);
    auto matcher = StopMatcher::Create({stop}, false);
    ASSERT_TRUE(matcher.ok());
    Detokenizer detokenizer(tokenizer, false, DetokenizeFrom::kTextStart);
    std::string shown;
    for (int32_t id : ids) {
      shown += matcher->Append(detokenizer.Append(id));
      ASSERT_TRUE(IsUtf8(shown));
      ASSERT_EQ(shown.find(stop), std::string::npos);
    }
    shown += matcher->AppendTail(detokenizer.Finish());
    ASSERT_TRUE(matcher->match()) << "the stop string is in the text";
    ASSERT_EQ(shown, whole.substr(0, whole.find(stop)));
  }
}

INSTANTIATE_TEST_SUITE_P(Text, AnyIds, testing::ValuesIn(kAll));

TEST(Detokenizer, HoldsACodePointUntilItsLastToken) {
  const Tokenizer& tokenizer = Load("gpt2");
  const auto ids = tokenizer.Encode("𝄞", false);  // not in the training text: four tokens of a byte
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 4u);
  Detokenizer detokenizer(tokenizer, false, DetokenizeFrom::kTextStart);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(detokenizer.Append((*ids)[i]), "");
  EXPECT_EQ(detokenizer.Append((*ids)[3]), "𝄞");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(Detokenizer, ACodePointThatNeverEndsIsReplacedAtTheEnd) {
  const Tokenizer& tokenizer = Load("gpt2");
  const auto ids = tokenizer.Encode("𝄞", false);
  Detokenizer detokenizer(tokenizer, false, DetokenizeFrom::kTextStart);
  EXPECT_EQ(detokenizer.Append((*ids)[0]), "");
  EXPECT_EQ(detokenizer.Finish(), "�");
}

TEST(Detokenizer, AfterAPromptTheLeadingSpaceOfSentencePieceIsText) {
  const Tokenizer& tokenizer = Load("spm-bpe");
  const auto ids = tokenizer.Encode("quick fox", false);
  Detokenizer start(tokenizer, true, DetokenizeFrom::kTextStart), after(tokenizer, true, DetokenizeFrom::kPrompt);
  std::string first, later;
  for (int32_t id : *ids) {
    first += start.Append(id);
    later += after.Append(id);
  }
  EXPECT_EQ(first, "quick fox");
  EXPECT_EQ(later, " quick fox");
}

TEST(Detokenizer, IdsOutsideTheVocabularyAddNothing) {
  for (const char* name : kAll) {
    const Tokenizer& tokenizer = Load(name);
    Detokenizer detokenizer(tokenizer, false, DetokenizeFrom::kTextStart);
    EXPECT_EQ(detokenizer.Append(-1) + detokenizer.Append(tokenizer.vocab_size()) + detokenizer.Append(INT32_MAX), "");
    EXPECT_EQ(detokenizer.Finish(), "");
    EXPECT_EQ(tokenizer.TokenBytes(-1), "");
    EXPECT_EQ(tokenizer.IdToToken(tokenizer.vocab_size()), "");
  }
}

}  // namespace
}  // namespace baton
