#include "router/http/console_page.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

// " 'sha256-…'" of the text of each such element.
std::string HashesOf(std::string_view page, const std::string& element) {
  std::string out;
  const std::string open = "<" + element + ">", close = "</" + element + ">";
  for (size_t at = page.find(open); at != std::string_view::npos; at = page.find(open, at)) {
    at += open.size();
    const std::string_view text = page.substr(at, page.find(close, at) - at);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
    const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof digest);
    absl::StrAppend(&out, " 'sha256-", absl::Base64Escape(bytes), "'");
  }
  return out;
}

}  // namespace

std::string ContentPolicyOf(std::string_view page) {
  return StrCat("default-src 'none'; script-src", HashesOf(page, "script"), "; style-src", HashesOf(page, "style"),
                "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

HttpResponse ConsoleResponse() {
  static const std::string policy = ContentPolicyOf(kConsolePage);
  return {200,
          {{"Content-Security-Policy", policy},
           {"X-Content-Type-Options", "nosniff"},
           {"Referrer-Policy", "no-referrer"},
           {"Cache-Control", "no-cache"}},
          "text/html; charset=utf-8",
          std::string(kConsolePage)};
}

}  // namespace baton::router
