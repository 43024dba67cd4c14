// ChatTemplate: messages to prompt text, by the model's own Jinja template, as transformers'
// apply_chat_template renders it.
//
// A template is a program that came with the weights. It runs without files, includes or clock (strftime_now reads
// `now_s`), under a fuel limit that grows with the request, and its output is capped at 64 MB.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

struct bt_template;

namespace baton {

class Tokenizer;
struct GgufTokenizerMetadata;

/// The special tokens that templates print as {{ bos_token }} and so on.
struct TemplateTokens {
  std::string bos;
  std::string eos;
  std::string pad;
  std::string unk;
};

/// One rendering. Views need to live only for the call.
struct RenderRequest {
  std::string_view messages_json;  ///< JSON array of messages, as the client sent it
  std::string_view tools_json;     ///< JSON array of tools; "" = none
  /// JSON object of more template variables (chat_template_kwargs, documents); "" = none.
  std::string_view kwargs_json;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  ///< the text ends inside the last message; excludes add_generation_prompt
  std::optional<int64_t> now_s;         ///< unix time for strftime_now; the machine's clock if not set
};

/// Immutable; Render may be called from any thread.
class ChatTemplate {
 public:
  /// `source` is Jinja. InvalidArgument with the line if it does not compile.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(std::string_view source, const TemplateTokens& tokens);
  /// chat_template.jinja, else tokenizer_config.json's chat_template (a string, or a list of named templates of which
  /// "default" is used, and "tool_use" when tools are given). NotFound if the model has none.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromHfDirectory(const std::string& directory);
  /// tokenizer.chat_template. NotFound if the file has none.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromGguf(const GgufTokenizerMetadata& metadata,
                                                                const TemplateTokens& tokens);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// InvalidArgument: malformed JSON, no messages, the template's own raise_exception (its text), or a template error.
  /// ResourceExhausted: out of fuel, or more than 64 MB of output.
  absl::StatusOr<std::string> Render(const RenderRequest& request) const;

  /// Whether the same request can have another text later (strftime_now).
  bool reads_clock() const { return reads_clock_; }
  /// The Jinja that renders chats with tools: it shows a model how to call them.
  const std::string& source() const { return source_; }

 private:
  ChatTemplate(bt_template* plain, bool reads_clock, std::string source)
      : plain_(plain), reads_clock_(reads_clock), source_(std::move(source)) {}

  bt_template* plain_;                 // owned
  bt_template* with_tools_ = nullptr;  // owned; null: plain_ serves both
  const bool reads_clock_;
  const std::string source_;
};

}  // namespace baton
