// What the public APIs whose clients come here have, and this server does not: such a path is answered with the reason.
#pragma once

#include <string_view>

#include "router/api_error.h"
#include "router/http/http_types.h"
#include "router/http/json_request.h"

namespace baton::router {

/// The API in whose shape errors on this path are.
Api ApiOf(const HttpRequest& request);

/// Why a known path is not served; null: no API here has such a path. Of "/v1/files" also "/v1/files/ID/content".
const char* WhyNotServed(std::string_view path);

/// 501 with that reason.
ApiError NotServed(const HttpRequest& request, const char* why);

}  // namespace baton::router
