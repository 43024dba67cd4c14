#include "text/grammar_form.h"

#include "text/rust_call.h"

namespace baton {

absl::Status CheckForm(const Grammar& grammar) {
  bt_error error{};
  bt_grammar_check_form(static_cast<int32_t>(grammar.kind), BtStr(grammar.text), &error);
  return TakeFileError(error, "");
}

absl::StatusOr<std::string> RulesBegunBy(const std::string& name, const std::string& text) {
  bt_error error{};
  const bt_buf rules = bt_rules_begun_by(BtStr(name), BtStr(text), &error);
  if (absl::Status status = TakeFileError(error, ""); !status.ok()) return status;
  return TakeBuf(rules);
}

std::string_view JsonSpace() {
  const bt_str space = bt_json_space();
  return {space.ptr, space.len};
}

absl::Status CheckJsonSpace(std::string_view pattern) {
  bt_error error{};
  bt_json_space_check(BtStr(pattern), &error);
  return TakeFileError(error, "");
}

}  // namespace baton
