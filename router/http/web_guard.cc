#include "router/http/web_guard.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/foreign_text.h"
#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr size_t kMostAskedHeaders = 2048;  // bytes of a preflight's list that is given back

// "a, b" and "[\"a\", \"b\"]" alike, which other servers' users know.
std::vector<std::string> Words(const std::string& list) {
  return absl::StrSplit(absl::AsciiStrToLower(list), absl::ByAnyChar(", []\"'"), absl::SkipEmpty());
}

// "localhost:8000" → "localhost", "[::1]:8000" → "::1".
std::string_view NameOf(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(1, authority.find(']') - 1);
  return authority.substr(0, authority.find(':'));
}

// "localhost:80@evil.example" and "[::1].evil.example" are the latter; no browser says them.
bool IsOdd(std::string_view authority) {
  const size_t behind = authority.starts_with('[') ? authority.find(']') + 1 : 0;
  return authority.find('@') != authority.npos || (behind > 0 && behind < authority.size() && authority[behind] != ':');
}

bool IsLocalName(std::string_view name) {
  return net::IsLoopback(name) || absl::EqualsIgnoreCase(AbslView(name), "localhost") ||
         absl::EndsWithIgnoreCase(AbslView(name), ".localhost");
}

bool Has(const std::vector<std::string>& all, std::string_view one) {
  return std::ranges::any_of(all, [&](const std::string& each) { return absl::EqualsIgnoreCase(each, AbslView(one)); });
}

ApiError Forbidden(std::string code, std::string message) {
  ApiError e{403, "permission_error", std::move(code), "", std::move(message)};
  e.grpc_code = absl::StatusCode::kPermissionDenied;
  return e;
}

}  // namespace

WebGuard::WebGuard(const Rules& rules) : origins_(Words(rules.origins)), hosts_(Words(rules.hosts)) {
  any_origin_ = Has(origins_, "*");
  local_origins_ = Has(origins_, "local");
  any_host_ = Has(hosts_, "*") || (hosts_.empty() && !rules.loopback);
}

std::string WebGuard::NeverSent(const std::string& origins) {
  for (const std::string& origin : Words(origins)) {
    if (origin == "*" || origin == "local" || origin == "null") continue;
    const size_t scheme = origin.find("://");
    if (scheme == origin.npos || scheme == 0 || scheme + 3 == origin.size() ||
        origin.find('/', scheme + 3) != origin.npos)
      return origin;
  }
  return "";
}

bool WebGuard::HostAllowed(std::string_view host) const {
  if (any_host_ || host.empty()) return true;  // every browser says a name
  if (IsOdd(host)) return false;
  const std::string_view name = NameOf(host);
  // Whoever turns a name of his own into this address cannot turn an address into another one.
  return net::IsIpAddress(name) || IsLocalName(name) || Has(hosts_, name) || Has(hosts_, host);
}

bool WebGuard::OriginAllowed(std::string_view origin, std::string_view host) const {
  if (any_origin_ || origin.empty() || Has(origins_, origin)) return true;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;  // "null": any page can be that
  const std::string_view authority = origin.substr(scheme + 3);
  if (!host.empty() && absl::EqualsIgnoreCase(AbslView(authority), AbslView(host))) return true;  // its own pages
  return local_origins_ && IsLocalName(NameOf(authority));
}

std::optional<ApiError> WebGuard::Refuses(const HttpRequest& request) const {
  const std::string_view host = request.Header("Host"), origin = request.Header("Origin");
  if (!HostAllowed(host)) {
    return Forbidden("host_not_allowed",
                     StrCat("This server is not known as ", Printable(NameOf(host), 100),
                            ". It answers to IP addresses, localhost and the names of --allowed-hosts."));
  }
  if (!OriginAllowed(origin, host)) {
    return Forbidden("origin_not_allowed", StrCat("Web pages of ", Printable(origin, 100),
                                                  " may not ask this server: --allowed-origins does not name them."));
  }
  return std::nullopt;
}

void WebGuard::Allow(const HttpRequest& request, HttpHeaders& headers) const {
  const std::string_view origin = request.Header("Origin");
  if (!any_origin_) headers.emplace_back("Vary", "Origin");
  if (origin.empty()) return;
  headers.emplace_back("Access-Control-Allow-Origin", any_origin_ ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, request-id, X-Ignored-Fields, Retry-After");
}

HttpHeaders WebGuard::Preflight(const HttpRequest& request) const {
  const std::string_view asked = request.Header("Access-Control-Request-Headers");
  const bool words = asked.size() <= kMostAskedHeaders && std::ranges::all_of(asked, [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == ',' || c == ' ';
                     });
  HttpHeaders out = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                     {"Access-Control-Allow-Headers",
                      asked.empty() || !words ? "Authorization, Content-Type, X-Request-Id" : std::string(asked)},
                     {"Access-Control-Max-Age", "600"}};
  // A page of the internet that asks a machine of this network; it was allowed by name.
  if (absl::EqualsIgnoreCase(AbslView(request.Header("Access-Control-Request-Private-Network")), "true"))
    out.emplace_back("Access-Control-Allow-Private-Network", "true");
  return out;
}

}  // namespace baton::router
