// The lists of models: OpenAI's shape, and Anthropic's for its clients, which say anthropic-version.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "router/http/ollama_format.h"
#include "router/http/openai_call.h"
#include "router/json_writer.h"
#include "router/percent_text.h"

namespace baton::router {
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
  const std::string name = FromPercent(call->request.path.substr(kModelPrefix.size()));
  const CallServices& s = service_.services();
  if (name.empty() || !ServesModel(s.config, s.model, name))
    return call->Fail(ModelNotFound(name, PublicModelNames(s.config, s.model)));
  call->RespondJson(call->api == Api::kMessages ? AnthropicModelCard(name) : ModelCard(name));
}

}  // namespace baton::router
