// Gpt2Grammars: compiles grammars over GPT-2's tokens, once for a suite, and says which texts they take.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/str_cat.h"
#include "tests/text/golden.h"
#include "text/grammar.h"

namespace baton {

class Gpt2Grammars : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "gpt2"))->release();
    compiler_ = GrammarCompiler::Make(*tokenizer_, {0}, tokenizer_->vocab_size())->release();
  }
  static void TearDownTestSuite() {
    delete compiler_;
    delete tokenizer_;
  }
  /// Whether `text` is a whole answer.
  static bool Takes(GrammarKind kind, const std::string& grammar, const std::string& text) {
    auto matcher = compiler_->Compile(kind, grammar);
    if (!matcher.ok()) {
      ADD_FAILURE() << grammar << "\n" << matcher.status();
      return false;
    }
    return (*matcher)->Consume(*tokenizer_->Encode(text, false)).ok() && (*matcher)->MayEnd();
  }

  static inline Tokenizer* tokenizer_;
  static inline GrammarCompiler* compiler_;
};

}  // namespace baton
