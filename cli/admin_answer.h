// What a router answers to an order or a question of the command line.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/foreign_json.h"
#include "cli/http_client.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"

namespace baton::cli {

/// The object that it answered; else what is wrong, after the address.
inline absl::StatusOr<nlohmann::json> AdminAnswer(const std::string& url,
                                                  const absl::StatusOr<HttpResponse>& response) {
  if (!response.ok()) return response.status();
  nlohmann::json body = ShallowJson(response->body);
  if (response->status == 200 && body.is_object()) return body;
  const nlohmann::json& error = FieldOf(body, "error");
  std::string what = error.is_object() ? ShownTextOf(error, "message") : StrCat("HTTP ", response->status);
  const bool of_worker = TextOf(error, "param") == "worker";
  if (response->status == 404 && !of_worker)
    what += " --url is a router's admin port (--admin-port, by default --port + 2)";
  return absl::FailedPreconditionError(StrCat(url, ": ", what));
}

}  // namespace baton::cli
