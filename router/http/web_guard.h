// WebGuard: what a request says of the web page that sends it: where the page is from (Origin), and by which name it
// knows this server (Host). A page that a person reads may ask this server on that person's behalf, past every
// firewall; it may not, unless it is a page of this machine, of this server, or one that an operator has named.
// Immutable, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/api_error.h"
#include "router/http/http_types.h"

namespace baton::router {

class WebGuard {
 public:
  struct Rules {
    std::string origins = "local";  ///< --allowed-origins
    std::string hosts;              ///< --allowed-hosts
    bool loopback = true;           ///< of the port: names are checked there, and where `hosts` are given
  };
  explicit WebGuard(const Rules& rules);

  /// The first of --allowed-origins that no browser ever sends, so that nobody would be allowed by it: without a
  /// scheme, or with a path. "" where there is none.
  static std::string NeverSent(const std::string& origins);

  /// None: the request may be answered. Else 403, which names the flag.
  std::optional<ApiError> Refuses(const HttpRequest& request) const;
  /// What a browser wants to read before it shows an answer to a page; to be called of requests that are not refused.
  void Allow(const HttpRequest& request, HttpHeaders& headers) const;
  /// The answer to what a browser asks before it sends a page's request.
  HttpHeaders Preflight(const HttpRequest& request) const;

 private:
  bool OriginAllowed(std::string_view origin, std::string_view host) const;
  bool HostAllowed(std::string_view host) const;

  std::vector<std::string> origins_, hosts_;  // in lower case
  bool any_origin_ = false, local_origins_ = false, any_host_ = false;
};

}  // namespace baton::router
