#include "router/dialect/message_roles.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/foreign_text.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

using Chat = nlohmann::ordered_json;

constexpr std::string_view kUsual[] = {"system", "user", "assistant", "tool"};
constexpr std::string_view kDeveloper = "developer";
constexpr std::string_view kBlanks = " \t\r\n";

bool IsUsual(std::string_view role) { return std::ranges::find(kUsual, role) != std::end(kUsual); }

bool SpeaksOf(std::string_view source, std::string_view role) {
  return source.find(StrCat("'", role, "'")) != source.npos || source.find(StrCat("\"", role, "\"")) != source.npos;
}

/// A member that is a text; of two with one name the last counts, and it may be none.
std::string TextMember(const Chat& message, const char* member) {
  const auto found = message.find(member);
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}
std::string RoleOf(const Chat& message) { return TextMember(message, "role"); }
std::string ContentOf(const Chat& message) { return TextMember(message, "content"); }

bool IsForTheTemplate(std::string_view role, std::string_view source) {
  return !IsUsual(role) && (role != kDeveloper || SpeaksOf(source, kDeveloper));
}

/// Of a message whose content a template is tried with. No template has such words of its own.
std::string TryWord(size_t number) { return StrCat("qzKx", number, "xKzq"); }

std::string KnownTo(std::string_view source) {
  std::string known;
  for (const std::string_view role : {kUsual[0], kUsual[1], kUsual[2], kUsual[3], kDeveloper}) {
    if (SpeaksOf(source, role)) known += StrCat(known.empty() ? "" : ", ", role);
  }
  return known;
}

/// "`messages[1]` has the role "critic""
std::string HasTheRole(size_t number, const std::string& role) {
  return StrCat("`messages[", number, "]` has the role \"", Printable(role, 40), "\"");
}

}  // namespace

bool HasOtherRole(std::string_view messages_json) {
  constexpr std::string_view kRole = R"("role":")";  // within a text its quotes would be escaped
  for (size_t at = messages_json.find(kRole); at != messages_json.npos; at = messages_json.find(kRole, at)) {
    at += kRole.size();
    const std::string_view rest = messages_json.substr(at);
    if (!IsUsual(rest.substr(0, rest.find('"')))) return true;
  }
  return false;
}

std::string WithKnownRoles(const std::string& messages_json, std::string_view template_source) {
  Chat messages = Chat::parse(messages_json);
  const auto is_developer = [](const Chat& message) { return RoleOf(message) == kDeveloper; };
  if (SpeaksOf(template_source, kDeveloper) || std::none_of(messages.begin(), messages.end(), is_developer))
    return messages_json;
  std::string said;
  Chat out = Chat::array({{{"role", "system"}}});
  for (Chat& message : messages) {
    if (const std::string role = RoleOf(message); role == kDeveloper || role == "system") {
      const std::string content = ContentOf(message);
      said += StrCat(said.empty() || content.empty() ? "" : "\n\n", content);
    } else {
      out.push_back(std::move(message));
    }
  }
  out[0]["content"] = std::move(said);
  return out.dump();
}

std::optional<std::string> LeftOutMessage(const ChatTemplate& chat_template, const RenderRequest& request) {
  Chat messages = Chat::parse(request.messages_json);
  std::vector<size_t> marked;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!IsForTheTemplate(RoleOf(messages[i]), chat_template.source())) continue;
    if (ContentOf(messages[i]).find_first_not_of(kBlanks) == std::string::npos) continue;  // nothing to leave out
    messages[i]["content"] = TryWord(i);
    marked.push_back(i);
  }
  if (marked.empty()) return std::nullopt;
  const std::string tried = WithKnownRoles(messages.dump(), chat_template.source());
  RenderRequest again = request;
  again.messages_json = tried;
  const absl::StatusOr<std::string> rendered = chat_template.Render(again);
  if (!rendered.ok()) return std::nullopt;  // it reads the contents: what it makes of these is no proof
  for (const size_t i : marked) {
    if (rendered->find(TryWord(i)) != std::string::npos) continue;
    return StrCat(HasTheRole(i, RoleOf(messages[i])),
                  ", of which this model's chat template prints no message; it knows ", KnownTo(chat_template.source()),
                  ".");
  }
  return std::nullopt;
}

std::string RolesKnown(const std::string& messages_json, std::string_view template_source) {
  const Chat messages = Chat::parse(messages_json);
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = RoleOf(messages[i]), known = KnownTo(template_source);
    if (!IsForTheTemplate(role, template_source)) continue;
    return StrCat(" (", HasTheRole(i, role), known.empty() ? "" : StrCat("; the template knows ", known), ")");
  }
  return "";
}

}  // namespace baton::router
