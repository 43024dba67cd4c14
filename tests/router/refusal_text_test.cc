// What a refusal costs and says does not grow with what a client sends.
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router/request/bad_words.h"

namespace baton::router {
namespace {

// The memory of a tokenizer grows with each byte of a text that it cannot cut.
TEST(RefusalText, BadWordsHaveAsManyBytesAsTheirTokensMayNeedBeforeTheyAreTokenized) {
  const auto tokenizer = *Tokenizer::OfModel("tests/data/tiny-llama");
  const auto refusal = [&](const std::vector<std::string>& words) {
    std::vector<int32_t> ids;
    const auto error = ReadBadWords(words, *tokenizer, tokenizer->vocab_size(), ids);
    return error ? error->message : "";
  };
  EXPECT_EQ(refusal({std::string(60'000, 'w'), std::string(5'537, 'w')}),
            "`bad_words` has 2 words of 65537 bytes together, at most 65536 bytes are possible.");
  EXPECT_EQ(refusal(std::vector<std::string>(70'000, "w")),
            "`bad_words` has 70000 words of 70000 bytes together, at most 65536 bytes are possible.");
  EXPECT_EQ(refusal(std::vector<std::string>(65'536, "w")), "`bad_words` has more than 4096 tokens in all.");
  EXPECT_EQ(refusal({std::string(1'000, 'w')}), "");
}

// Over gRPC it is a header, which may not be longer than a client takes.
TEST(RefusalText, AModelThatThereIsNotIsNamedByItsBeginning) {
  EXPECT_EQ(ModelNotFound("gpt-4", {"tiny"}).message, "The model `gpt-4` does not exist. This server has `tiny`.");
  const std::string message = ModelNotFound(std::string(1 << 20, 'x') + "\n", {"tiny"}).message;
  EXPECT_LT(message.size(), 400u);
  EXPECT_NE(message.find("1048577 bytes"), std::string::npos) << message;
}

}  // namespace
}  // namespace baton::router
