// What a router answers to an order or a question of the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "cli/http_client.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"

namespace baton::cli {

/// A number of a foreign answer; 0: it has none of that name.
inline double NumberOf(const nlohmann::json& from, const char* name) {
  return from.is_object() && from.contains(name) && from[name].is_number() ? from[name].get<double>() : 0;
}

/// The object that it answered; else what is wrong, after the address.
inline absl::StatusOr<nlohmann::json> AdminAnswer(const std::string& url,
                                                  const absl::StatusOr<HttpResponse>& response) {
  if (!response.ok()) return response.status();
  const nlohmann::json body = ShallowJson(response->body);
  if (response->status == 200 && body.is_object()) return body;
  const bool said = body.is_object() && body.contains("error") && body["error"].is_object();
  std::string what = said ? body["error"].value("message", "") : StrCat("HTTP ", response->status);
  const bool of_worker = said && body["error"].contains("param") && body["error"]["param"] == "worker";
  if (response->status == 404 && !of_worker)
    what += " --url is a router's admin port (--admin-port, by default --port + 2)";
  return absl::FailedPreconditionError(StrCat(url, ": ", what));
}

}  // namespace baton::cli
