// The arguments of calls as Lark: JSON, or as a form writes them that writes no JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/dialect/call_form.h"
#include "router/dialect/call_marks.h"

namespace baton::router {

/// The arguments of all functions of one grammar. What it gives is the name of a rule for everything behind the
/// function's name but parentheses.
///
/// Python's and Gemma's forms have what is simple in a schema written their way (texts, numbers, True, lists and
/// objects of these) and as JSON what is not: both are read. An optional argument is there or not, in the schema's
/// order; one that the schema only allows, as `additionalProperties`, never is.
class ArgumentRules {
 public:
  /// `quote`: of texts; Gemma's only.
  ArgumentRules(CallWriting writing, Mark quote) : writing_(writing), quote_(std::move(quote)) {}

  /// InvalidArgument: what of `schema` (JSON of an object) this form has no way for, with its place.
  absl::StatusOr<std::string> Strict(std::string_view schema);
  /// Of a function whose arguments may be anything.
  std::string Free();
  /// The rules that were named.
  const std::string& rules() const { return rules_; }

 private:
  using Json = nlohmann::ordered_json;

  bool is_json() const { return writing_ == CallWriting::kJson || writing_ == CallWriting::kMistral; }
  std::string Rule(std::string_view body);
  /// What fits any schema, once.
  void NeedAny();
  std::string AsJson(const Json& schema);
  std::string Value(const Json& schema);
  std::string OneOf(const Json& values);
  std::string Exactly(const Json& value);
  std::string Object(const Json& schema);
  /// Members in their order, with commas between. `head`: a member's key and what stands behind it.
  std::string Members(const Json& schema, std::string (*head)(CallWriting, std::string_view));

  const CallWriting writing_;
  const Mark quote_;
  const Json* root_ = nullptr;  ///< of the function that is being written
  std::string rules_;
  size_t count_ = 0;
  bool has_any_ = false;
};

}  // namespace baton::router
