// The console: one static page for operators, which shows the event stream (router/events/). It is made of the files of
// router/console/ when Baton is built, and asks nothing of any other server.
#pragma once

#include <string_view>

#include "router/http/http_types.h"

namespace baton::router {

/// The page's text: generated, see router/CMakeLists.txt.
extern const std::string_view kConsolePage;

/// Header Content-Security-Policy of a page: its own inline scripts and styles, by their hashes, and its own origin.
std::string ContentPolicyOf(std::string_view page);
/// The answer to whoever asks for the console.
HttpResponse ConsoleResponse();

}  // namespace baton::router
