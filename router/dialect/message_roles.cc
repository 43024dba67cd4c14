#include "router/dialect/message_roles.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace baton::router {
namespace ondemand = simdjson::ondemand;
namespace {

constexpr std::string_view kUsual[] = {"system", "user", "assistant", "tool"};
constexpr std::string_view kDeveloper = "developer";
constexpr std::string_view kBlanks = " \t\r\n";

bool IsUsual(std::string_view role) { return std::ranges::find(kUsual, role) != std::end(kUsual); }

bool SpeaksOf(std::string_view source, std::string_view role) {
  return source.find(StrCat("'", role, "'")) != source.npos || source.find(StrCat("\"", role, "\"")) != source.npos;
}

/// A message, as it is written. Members that are no texts count as empty; of two with one name the last counts.
struct RoledMessage {
  std::string json, role, content;
};

/// Reads one of them.
bool ReadRoled(ondemand::object members, RoledMessage& message) {
  std::string_view json;
  if (members.raw_json().get(json) || members.reset().error()) return false;
  message.json = std::string(json);
  for (auto one : members) {
    ondemand::field member;
    std::string_view name, text;
    if (std::move(one).get(member) || member.unescaped_key().get(name)) return false;
    if (name != "role" && name != "content") continue;
    if (member.value().get_string().get(text)) text = "";
    (name == "role" ? message.role : message.content) = std::string(text);
  }
  return true;
}

/// `messages_json`: an array of objects.
std::vector<RoledMessage> MessagesOf(std::string_view messages_json) {
  std::vector<RoledMessage> messages;
  const simdjson::padded_string text(messages_json);
  ondemand::parser parser;
  ondemand::document document;
  ondemand::array list;
  if (parser.iterate(text).get(document) || document.get_array().get(list)) return messages;
  for (auto one : list) {
    ondemand::object members;
    if (one.get_object().get(members) || !ReadRoled(members, messages.emplace_back())) break;
  }
  return messages;
}

/// Where the template does not know of developers, they are the system.
bool IsTheSystem(const RoledMessage& message, bool knows_developers) {
  return message.role == "system" || (message.role == kDeveloper && !knows_developers);
}

std::string WithOneSystem(const std::vector<RoledMessage>& messages) {
  std::string said, rest;
  for (const RoledMessage& message : messages) {
    if (IsTheSystem(message, false)) {
      said += StrCat(said.empty() || message.content.empty() ? "" : "\n\n", message.content);
    } else {
      rest += StrCat(",", message.json);
    }
  }
  return StrCat(R"([{"role":"system","content":)", nlohmann::json(said).dump(), "}", rest, "]");
}

/// Around the number of a message whose content a template is tried with. No template has such words of its own.
constexpr std::string_view kTryBefore = "qzKx", kTryBehind = "xKzq";

/// Which of so many messages are in a text, by these words.
std::vector<bool> Printed(std::string_view text, size_t messages) {
  std::vector<bool> printed(messages);
  for (size_t at = text.find(kTryBefore); at != text.npos; at = text.find(kTryBefore, at)) {
    at += kTryBefore.size();
    size_t number = 0;
    const auto [end, failed] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    const bool whole =
        failed == std::errc() && std::string_view(end, text.data() + text.size()).starts_with(kTryBehind);
    if (whole && number < messages) printed[number] = true;
  }
  return printed;
}

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
  if (SpeaksOf(template_source, kDeveloper)) return messages_json;
  const std::vector<RoledMessage> messages = MessagesOf(messages_json);
  const bool any = std::ranges::find(messages, kDeveloper, &RoledMessage::role) != messages.end();
  return any ? WithOneSystem(messages) : messages_json;
}

std::optional<std::string> LeftOutMessage(const ChatTemplate& chat_template, const RenderRequest& request) {
  const bool knows_developers = SpeaksOf(chat_template.source(), kDeveloper);
  const std::vector<RoledMessage> messages = MessagesOf(request.messages_json);
  std::vector<size_t> marked;
  std::string tried;
  for (size_t i = 0; i < messages.size(); ++i) {
    const RoledMessage& one = messages[i];
    tried += tried.empty() ? "[" : ",";
    const bool says =
        one.content.find_first_not_of(kBlanks) != std::string::npos;  // else there is nothing to leave out
    const bool usual = IsUsual(one.role) || IsTheSystem(one, knows_developers) || !says;
    nlohmann::json members = usual ? nlohmann::json() : nlohmann::json::parse(one.json, nullptr, false);
    if (!members.is_object()) {  // a number beyond a double is none that it reads
      tried += one.json;
      continue;
    }
    members["content"] = StrCat(kTryBefore, i, kTryBehind);
    tried += members.dump();
    marked.push_back(i);
  }
  if (marked.empty()) return std::nullopt;
  tried = WithKnownRoles(tried + "]", chat_template.source());
  RenderRequest again = request;
  again.messages_json = tried;
  const absl::StatusOr<std::string> rendered = chat_template.Render(again);
  if (!rendered.ok()) return std::nullopt;  // it reads the contents: what it makes of these is no proof
  const std::vector<bool> printed = Printed(*rendered, messages.size());
  for (const size_t i : marked) {
    if (printed[i]) continue;
    return StrCat(HasTheRole(i, messages[i].role), ", of which this model's chat template prints no message; it knows ",
                  KnownTo(chat_template.source()), ".");
  }
  return std::nullopt;
}

std::string RolesKnown(const std::string& messages_json, std::string_view template_source) {
  const bool knows_developers = SpeaksOf(template_source, kDeveloper);
  const std::vector<RoledMessage> messages = MessagesOf(messages_json);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (IsUsual(messages[i].role) || IsTheSystem(messages[i], knows_developers)) continue;
    const std::string known = KnownTo(template_source);
    return StrCat(" (", HasTheRole(i, messages[i].role), known.empty() ? "" : StrCat("; the template knows ", known),
                  ")");
  }
  return "";
}

}  // namespace baton::router
