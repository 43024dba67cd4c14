#include "router/dialect/call_form.h"

#include <algorithm>

#include "router/dialect/call_text.h"

namespace baton::router {

const std::vector<CallForm>& CallForms() {
  static const auto* forms = new std::vector<CallForm>{
      {.name = "hermes",
       .help = R"(<tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen 2.5 and 3)",
       .open = "<tool_call>",
       .close = "</tool_call>",
       .parse = ReadJsonCall},
      {.name = "llama3_json",
       .help = R"({"name": …, "parameters": {…}} as the whole answer: Llama 3.1 to 3.3)",
       .parse = ReadJsonCalls,
       .first = "{",
       .lead = "<|python_tag|>"},
      {.name = "mistral",
       .help = R"([TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]name{…}: Mistral)",
       .open = "[TOOL_CALLS]",
       .parse = ReadMistralCalls,
       .writing = CallWriting::kMistral,
       .short_ids = true},
      {.name = "pythonic",
       .help = "[name(key=value, …), …] as the whole answer: Llama 3.2 and 4, ToolACE",
       .parse = ReadPythonCalls,
       .first = "[",
       .lead = "<|python_start|>",
       .writing = CallWriting::kPython},
      {.name = "gemma",
       .help = "<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>: FunctionGemma",
       .open = "<start_function_call>",
       .close = "<end_function_call>",
       .parse = ReadGemmaCalls,
       .writing = CallWriting::kGemma,
       .quotes = {"<escape>", "<|\"|>", "\"", "'"}},
      {.name = "gemma4",
       .help = R"(<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>: Gemma 4)",
       .open = "<|tool_call>",
       .close = "<tool_call|>",
       .parse = ReadGemmaCalls,
       .writing = CallWriting::kGemma,
       .quotes = {"<|\"|>", "<escape>", "\"", "'"}},
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
