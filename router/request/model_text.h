// ModelText: what the router needs of a model: tokenizer, chat template, and the defaults of its
// generation_config.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/dialect/call_form.h"
#include "router/request_types.h"
#include "text/chat_template.h"
#include "text/token_cache.h"
#include "text/tokenizer.h"

namespace baton::router {

class GrammarCheck;
class SeenChats;

/// What comes from elsewhere than the model's own files.
struct TextFiles {
  bool no_tokenizer = false;        ///< none is read, nor a chat template
  std::string tokenizer{};          ///< HF directory or .gguf file, with the chat template; empty: the model's
  std::string config{};             ///< HF directory that stands for the model's own config; empty: the model's
  std::string generation_config{};  ///< folder of generation_config.json; empty: the model's
  std::string override_generation_config{};    ///< JSON of that file's keys, over it; empty: none
  std::string default_chat_template_kwargs{};  ///< JSON of the template's variables; empty: none
};

/// Immutable but for the caches; any thread.
struct ModelText {
  std::string name;  ///< base name of the path, without ".gguf"
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<TokenCache> prompt_ids;             ///< tokenizes prompts; any thread
  std::shared_ptr<SeenChats> seen_chats;              ///< and those of whole chats that come again; any thread
  std::unique_ptr<const ChatTemplate> chat_template;  ///< null: the model has none
  const CallForm* call_form = nullptr;                ///< that the template shows the model; null: none
  std::string template_defaults;                      ///< JSON object of variables that a chat does not say; "" = none
  SamplingOptions defaults;                           ///< of generation_config.json; what it does not set is absent
  std::vector<int32_t> eos_token_ids;
  size_t longest_token = 0;  ///< bytes of text that a token stands for, at most; 0: any number, so texts have no bound
  std::shared_ptr<GrammarCheck> grammars;  ///< checks those of requests; any thread. Reads the tokenizer

  /// `path`: an HF directory or a .gguf file. `chat_template`: replaces the model's; "" = the model's own.
  /// `use_generation_config`: false leaves `defaults` empty. `token_cache_bytes`: a quarter of them is for whole chats.
  /// Errors of text/ and common/gguf, which name the file.
  static absl::StatusOr<ModelText> Load(const std::string& path, const std::string& chat_template,
                                        bool use_generation_config, size_t token_cache_bytes,
                                        const TextFiles& elsewhere = {});
};

/// Request over model defaults over neutral values. Every field a worker looks at is set then, except seed and
/// max_tokens.
SamplingOptions ResolveSampling(const SamplingOptions& request, const SamplingOptions& defaults);

}  // namespace baton::router
