// Roles of a chat's messages. Clients may write any word there, and the chat template decides what becomes of it; but
// no message is left out in silence. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace baton::router {

/// Whether a message has another role than system, user, assistant and tool. `messages_json`: an array without white
/// space between its values.
bool HasOtherRole(std::string_view messages_json);

/// The messages as a template of this source takes them. Where it does not speak of "developer", that is "system", and
/// all messages of that role are one, the first: most templates take no other. So vLLM has it, too.
std::string WithKnownRoles(const std::string& messages_json, std::string_view template_source);

/// What a client is told of the first message whose role made the template leave it out; nothing: there is none.
/// `request`: as the client sent it, before WithKnownRoles.
std::optional<std::string> LeftOutMessage(const ChatTemplate& chat_template, const RenderRequest& request);

/// Behind the error of a template that did not take these messages: the first of another role, and those that the
/// template knows. Empty: no message has another role.
std::string RolesKnown(const std::string& messages_json, std::string_view template_source);

}  // namespace baton::router
