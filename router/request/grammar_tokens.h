// Tokens that a request's grammar names by their ids or their texts: rules that are written when the tokenizer is at
// hand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "router/api_error.h"
#include "text/grammar_kind.h"
#include "text/tokenizer.h"

namespace baton::router {

/// A rule of a grammar in Lark that is any one of some tokens, or any one but these.
struct TokenRule {
  struct Named {
    std::variant<int64_t, std::string> token;
    std::string path;  ///< where it stands in the request
  };
  std::string name;
  bool all_but = false;
  std::vector<Named> tokens;
};

/// Appends the rules to `grammar`. A 400 names the place of a token that there is not, or that ends a text.
std::optional<ApiError> WriteTokenRules(const std::vector<TokenRule>& rules, const Tokenizer& tokenizer,
                                        std::shared_ptr<const Grammar>& grammar);

}  // namespace baton::router
