// The lists of models: OpenAI's shape, and Anthropic's for its clients, which say anthropic-version.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "router/http/ollama_format.h"
#include "router/http/openai_call.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

int HexDigit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

// "org%2Fmodel" → "org/model"; what is no escape stays.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0;
    out.push_back(escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i]);
    if (escape) i += 2;
  }
  return out;
}

}  // namespace

std::string OpenAiApp::ModelCard(const std::string& name) const {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("id", name).Field("object", "model").Field("created", started_).Field("owned_by", "baton");
  w.Field("root", service_.services().model.name).NullField("parent");
  const auto facts = service_.fleet().model_facts();
  facts ? w.Field("max_model_len", facts->max_model_len) : w.NullField("max_model_len");
  w.Key("permission").BeginArray().EndArray().EndObject();
  return out;
}

std::string OpenAiApp::AnthropicModelCard(const std::string& name) const {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("type", "model").Field("id", name).Field("display_name", name);
  w.Field("created_at", Rfc3339(started_)).EndObject();
  return out;
}

void OpenAiApp::Models(const std::shared_ptr<Call>& call) {
  const CallServices& s = service_.services();
  const bool anthropics = call->api == Api::kMessages;
  const std::vector<std::string> names = PublicModelNames(s.config, s.model);
  std::vector<std::string> cards;
  cards.reserve(names.size());
  for (const std::string& name : names) cards.push_back(anthropics ? AnthropicModelCard(name) : ModelCard(name));
  std::string out;
  JsonWriter w(out);
  w.BeginObject();
  if (!anthropics) w.Field("object", "list");
  w.Key("data").Raw(StrCat("[", absl::StrJoin(cards, ","), "]"));
  if (anthropics) w.Field("has_more", false).Field("first_id", names.front()).Field("last_id", names.back());
  w.EndObject();
  call->RespondJson(std::move(out));
}

void OpenAiApp::OneModel(const std::shared_ptr<Call>& call) {
  const std::string name = PercentDecoded(call->request.path.substr(kModelPrefix.size()));
  const CallServices& s = service_.services();
  if (name.empty() || !ServesModel(s.config, s.model, name))
    return call->Fail(ModelNotFound(name, PublicModelNames(s.config, s.model)));
  call->RespondJson(call->api == Api::kMessages ? AnthropicModelCard(name) : ModelCard(name));
}

}  // namespace baton::router
