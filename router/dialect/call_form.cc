#include "router/dialect/call_form.h"

#include <algorithm>

#include "common/str_cat.h"
#include "router/dialect/call_text.h"

namespace baton::router {

namespace {

std::string JsonHead(std::string_view name) {
  return StrCat(R"([ \n]{0,2}\{[ \n]{0,2}"name"[ \n]{0,2}:[ \n]{0,2}")", name,
                R"("[ \n]{0,2},[ \n]{0,2}"arguments"[ \n]{0,2}:[ \n]{0,2})");
}

}  // namespace

// The text up to a mark is one lazy terminal, so that no text goes on behind a mark as if it were none.
std::string FreeCallGrammar(const CallForm& form, const std::vector<Callable>& functions) {
  if (form.head == nullptr || std::ranges::none_of(functions, &Callable::strict)) return "";
  std::string calls, rules;
  for (size_t i = 0; i < functions.size(); ++i) {
    const Callable& one = functions[i];
    absl::StrAppend(&calls, i > 0 ? " | " : "", "call_", i);
    absl::StrAppend(&rules, "call_", i, ": HEAD_", i, " args_", i, "\nHEAD_", i, ": /", form.head(one.name), "/\nargs_",
                    i, ": %json ", one.strict ? one.schema : R"({"type":"object"})", "\n");
  }
  return StrCat("start: (before (", calls, ") BEHIND)* REST?\nbefore[lazy]: /(?s:.*)/ \"", form.open,
                "\"\nBEHIND: /[ \\n]{0,2}\\}[ \\n]{0,2}/ \"", form.close, "\"\nREST: /(?s:.+)/\n", rules);
}

const std::vector<CallForm>& CallForms() {
  static const auto* forms = new std::vector<CallForm>{
      {.name = "hermes",
       .help = R"(<tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen 2.5 and 3)",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .parse = ReadJsonCall,
       .head = JsonHead},
      {.name = "llama3_json",
       .help = R"({"name": …, "parameters": {…}} as the whole answer: Llama 3.1 to 3.3)",
       .parse = ReadJsonCalls,
       .first = "{",
       .lead = "<|python_tag|>"},
      {.name = "mistral",
       .help = R"([TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]name{…}: Mistral)",
       .open = "[TOOL_CALLS]",
       .parse = ReadMistralCalls,
       .short_ids = true},
      {.name = "pythonic",
       .help = "[name(key=value, …), …] as the whole answer: Llama 3.2 and 4, ToolACE",
       .parse = ReadPythonCalls,
       .first = "[",
       .lead = "<|python_start|>"},
      {.name = "gemma",
       .help = "<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>: FunctionGemma",
       .open = "<start_function_call>",
       .close = "<end_function_call>",
       .parse = ReadGemmaCalls},
      {.name = "gemma4",
       .help = R"(<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>: Gemma 4)",
       .open = "<|tool_call>",
       .close = "<tool_call|>",
       .parse = ReadGemmaCalls},
  };
  return *forms;
}

const CallForm* FindCallForm(std::string_view name) {
  const auto found = std::ranges::find(CallForms(), name, &CallForm::name);
  return found == CallForms().end() ? nullptr : &*found;
}

const CallForm* CallFormOf(std::string_view source) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  if (has("<tool_call>")) return has("<function=") || has("<arg_key>") ? nullptr : FindCallForm("hermes");
  for (const char* name : {"mistral", "gemma", "gemma4"}) {
    if (has(FindCallForm(name)->open)) return FindCallForm(name);
  }
  if (has("[func_name1(") || has("[func1(")) return FindCallForm("pythonic");
  const bool of_llama = has("<|start_header_id|>") && (has("\"parameters\"") || has(R"(\"parameters\")"));
  return has("<|python_tag|>") || of_llama ? FindCallForm("llama3_json") : nullptr;
}

}  // namespace baton::router
