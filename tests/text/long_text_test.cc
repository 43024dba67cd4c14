// Long texts are tokenized in pieces: the ids are those of the whole, and memory does not grow with the text.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/tokenizer.h"

namespace baton {
namespace {

constexpr size_t kWhole = SIZE_MAX;
constexpr const char* kTokenizers[] = {"gpt2",        "llama3",      "qwen2", "smollm",  "tekken",
                                       "gpt-4o",      "deepseek-v3", "dbrx",  "spm-bpe", "spm-bpe-no-prefix",
                                       "spm-unigram", "wordpiece"};
std::unique_ptr<Tokenizer> LoadGolden(const std::string& name) {
  auto made = Tokenizer::FromHfDirectory(golden::kFolder + name);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

/// Pieces that meet each other in every order: words, marks, spaces of many kinds, digits, scripts, special tokens.
std::string RandomText(std::mt19937& random, size_t parts) {
  static const char* const kParts[] = {"word",
                                       "Word",
                                       "x",
                                       "1",
                                       "22",
                                       "1234",
                                       "'s",
                                       "'LL",
                                       ".",
                                       ",",
                                       "!?",
                                       "\n",
                                       "\n\n",
                                       "\r\n",
                                       "\t",
                                       " ",
                                       " ",
                                       " ",
                                       "  ",
                                       "   ",
                                       "é",
                                       "e\xCC\x81",
                                       "ß",
                                       "Ω",
                                       "привет",
                                       "你好",
                                       "。",
                                       "，",
                                       "：",
                                       "한국",
                                       "日本",
                                       "ー",
                                       "\xE2\x96\x81",
                                       "ा",
                                       "\xCC\x88",
                                       "🙂",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "\xE2\x80\x83",
                                       "\xE2\x84\xAA",
                                       "²",
                                       "Ⅷ",
                                       "_",
                                       "/",
                                       "<s>",
                                       "</s>",
                                       "<tool>",
                                       "<|im_start|>",
                                       "<|im_end|>",
                                       "<|endoftext|>",
                                       "{",
                                       "}",
                                       "\"",
                                       "\\",
                                       "\xFF",
                                       "\x1C",
                                       "\xC2\x85",
                                       "don't",
                                       "HTTPServer",
                                       "a b",
                                       "[MASK]"};
  std::string text;
  for (size_t i = 0; i < parts; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

void ExpectSameIds(const Tokenizer& tokenizer, const char* name, const std::string& text) {
  for (const bool special : {false, true}) {
    for (const bool parsed : {false, true}) {
      const auto whole = tokenizer.Encode(text, special, parsed, kWhole);
      for (const size_t piece : {1, 7, 100}) {
        const auto pieces = tokenizer.Encode(text, special, parsed, piece);
        ASSERT_EQ(whole.ok(), pieces.ok());
        ASSERT_EQ(whole.value_or(std::vector<int32_t>()), pieces.value_or(std::vector<int32_t>()))
            << name << ", pieces of " << piece << ": " << text;
      }
    }
  }
}

TEST(LongText, IdsOfPiecesAreThoseOfTheWhole) {
  for (const char* name : kTokenizers) {
    const auto tokenizer = LoadGolden(name);
    for (const std::string& text : golden::Corpus()) {
      if (text.size() < 20'000) ExpectSameIds(*tokenizer, name, text);
    }
    std::mt19937 random(7);
    for (int i = 0; i < 400; ++i) ExpectSameIds(*tokenizer, name, RandomText(random, 1 + random() % 40));
  }
}

TEST(LongText, IdsOfAMegabyteAreThoseOfTheWhole) {
  std::mt19937 random(8);
  const std::string text = RandomText(random, 250'000);
  for (const char* name : {"llama3", "qwen2", "spm-bpe", "deepseek-v3"}) {
    const auto tokenizer = LoadGolden(name);
    EXPECT_EQ(*tokenizer->Encode(text, true, true, kWhole), *tokenizer->Encode(text, true)) << name;
  }
}

size_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
  }
  return 0;
}

/// By how much a child's memory grows at most while it does `work`; the child is a copy of this process.
size_t MostMemoryOf(const std::function<void()>& work) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    malloc_trim(0);                                 // what was freed before is not at hand
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    const size_t before = PeakBytes();
    work();
    const size_t grown = PeakBytes() - before;
    _exit(write(ends[1], &grown, sizeof(grown)) == sizeof(grown) ? 0 : 1);
  }
  size_t grown = 0;
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(ends[0], &grown, sizeof(grown)), static_cast<ssize_t>(sizeof(grown)));
  for (const int end : ends) close(end);
  return grown;
}

/// Words, so that a text may be cut at many places.
std::string Words(size_t bytes) {
  std::mt19937 random(9);
  std::string text;
  while (text.size() < bytes) text += "word" + std::to_string(random() % 100000) + (random() % 9 == 0 ? ".\n" : " ");
  return text;
}

TEST(LongText, MemoryIsAFewBytesForEachByteOfText) {
  const std::string text = Words(3 << 20);
  for (const char* name : {"gpt2", "llama3", "qwen2", "deepseek-v3", "spm-bpe"}) {
    const auto tokenizer = LoadGolden(name);
    const size_t bytes = MostMemoryOf([&] {
      if (!tokenizer->Encode(text, true).ok()) abort();
    });
    const double each = static_cast<double>(bytes) / static_cast<double>(text.size());
    std::printf("%-18s %.1f bytes a byte of text\n", name, each);
    EXPECT_LT(each, 20) << name;
  }
}

TEST(LongText, ManyTextsThatCannotBeCutTakeNoMoreThanSome) {
  const std::string text(3 << 20, '7');
  const auto tokenizer = LoadGolden("llama3");
  const auto encode = [&] {
    if (!tokenizer->Encode(text, true).ok()) abort();
  };
  const size_t one = MostMemoryOf(encode);
  const size_t many = MostMemoryOf([&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) threads.emplace_back(encode);
    for (std::thread& thread : threads) thread.join();
  });
  std::printf("one %zu MiB, six %zu MiB\n", one >> 20, many >> 20);
  EXPECT_LT(many, 4 * one) << "of 8 MiB two texts of 3 MiB are read at once";
}

}  // namespace
}  // namespace baton
