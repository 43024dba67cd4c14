#include "text/grammar_form.h"

#include "text/rust_call.h"

namespace baton {

absl::Status CheckForm(const Grammar& grammar) {
  bt_error error{};
  bt_grammar_check_form(static_cast<int32_t>(grammar.kind), BtStr(grammar.text), &error);
  return TakeFileError(error, "");
}

}  // namespace baton
