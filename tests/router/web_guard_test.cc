// Which web pages may ask, and by which name of this server.
#include "router/http/web_guard.h"

#include <gmock/gmock.h>

#include "router/router_config.h"

namespace baton::router {
namespace {

using testing::HasSubstr;
using testing::Pair;

HttpRequest Of(std::string host, std::string origin = "") {
  HttpRequest request{.method = "POST", .path = "/v1/completions", .query = "", .headers = {}, .body = ""};
  if (!host.empty()) request.headers.emplace_back("host", std::move(host));
  if (!origin.empty()) request.headers.emplace_back("Origin", std::move(origin));
  return request;
}

struct Row {
  const char *host, *origin;
  const char* code;  // of the refusal; "": none
};

void Expect(const WebGuard::Rules& rules, const std::vector<Row>& rows) {
  const WebGuard guard(rules);
  for (const Row& row : rows) {
    const auto refusal = guard.Refuses(Of(row.host, row.origin));
    EXPECT_EQ(refusal ? refusal->code : "", row.code) << row.host << " " << row.origin;
    EXPECT_TRUE(!refusal || refusal->http_status == 403);
  }
}

TEST(WebGuard, OriginsThatNoBrowserSendsAreFoundBeforeTheyAllowNobody) {
  for (const char* fine :
       {"", "*", "local, https://ui.example:8443", "[\"https://a.example\", \"null\"]", "HTTP://A.example"})
    EXPECT_EQ(WebGuard::NeverSent(fine), "") << fine;
  for (const auto& [list, never] : {std::pair{"https://a.example,chat.example.com", "chat.example.com"},
                                    {"https://a.example/", "https://a.example/"},
                                    {"https://", "https://"}})
    EXPECT_EQ(WebGuard::NeverSent(list), never);
  RouterConfig c;
  c.worker = {"127.0.0.1:1"}, c.model = "m", c.allowed_origins = "chat.example.com";
  EXPECT_THAT(std::string(c.Validate().message()),
              HasSubstr("--allowed-origins: no browser says \"chat.example.com\""));
}

TEST(WebGuard, OnLoopbackOnlyItsOwnPagesAndNamesMayAsk) {
  Expect({}, {{"127.0.0.1:8000", "", ""},
              {"localhost:8000", "", ""},
              {"LOCALHOST", "", ""},
              {"app.localhost", "", ""},
              {"[::1]:8000", "", ""},
              {"", "", ""},
              {"192.0.2.7:8000", "", ""},
              {"localhost:8000", "http://localhost:3000", ""},
              {"127.0.0.1:8000", "https://127.0.0.1", ""},
              {"[::1]:8000", "http://[::1]:5173", ""},
              {"localhost:8000", "tauri://localhost", ""},
              // A name that its owner has turned into this address.
              {"evil.example:8000", "", "host_not_allowed"},
              {"evil.example:8000", "http://evil.example:8000", "host_not_allowed"},
              {"127.evil.example", "", "host_not_allowed"},
              {"localhost.evil.example", "", "host_not_allowed"},
              {"evillocalhost", "", "host_not_allowed"},
              {"[evil.example", "", "host_not_allowed"},
              {"localhost:80@evil.example", "", "host_not_allowed"},
              {"[::1].evil.example", "", "host_not_allowed"},
              // A page of somebody else.
              {"localhost:8000", "https://evil.example", "origin_not_allowed"},
              {"localhost:8000", "http://localhost.evil.example", "origin_not_allowed"},
              {"localhost:8000", "http://127.0.0.1.evil.example", "origin_not_allowed"},
              {"localhost:8000", "null", "origin_not_allowed"},
              {"localhost:8000", "evil", "origin_not_allowed"}});
}

TEST(WebGuard, ElsewhereNamesAreCheckedWhereTheyAreGiven) {
  Expect({.loopback = false}, {{"llm.example", "", ""},
                               {"llm.example", "https://llm.example", ""},
                               {"llm.example:8000", "https://evil.example", "origin_not_allowed"}});
  Expect({.hosts = "llm.example, llm2.example:8443", .loopback = false}, {{"llm.example", "", ""},
                                                                          {"LLM.example:9000", "", ""},
                                                                          {"llm2.example:8443", "", ""},
                                                                          {"llm2.example:8444", "", "host_not_allowed"},
                                                                          {"10.0.0.7:8000", "", ""},
                                                                          {"other.example", "", "host_not_allowed"}});
  Expect({.hosts = "*"}, {{"any.example", "", ""}, {"any.example", "http://evil.example", "origin_not_allowed"}});
}

TEST(WebGuard, OriginsAreThoseThatAreNamed) {
  Expect({.origins = "*"}, {{"localhost", "https://any.example", ""}, {"localhost", "null", ""}});
  for (const char* list : {"https://ui.example,http://b:8080", "[\"https://ui.example\", \"http://b:8080\"]"}) {
    Expect({.origins = list}, {{"localhost", "https://ui.example", ""},
                               {"localhost", "http://b:8080", ""},
                               {"localhost", "http://b:8081", "origin_not_allowed"},
                               {"localhost", "http://ui.example", "origin_not_allowed"},
                               {"localhost", "http://localhost:3000", "origin_not_allowed"}});
  }
  Expect({.origins = "local,null"}, {{"localhost", "http://localhost:3000", ""}, {"localhost", "null", ""}});
  Expect({.origins = ""}, {{"localhost:8000", "http://localhost:3000", "origin_not_allowed"},
                           {"localhost:8000", "http://localhost:8000", ""},
                           {"localhost:8000", "", ""}});
}

TEST(WebGuard, ABrowserIsToldWhatItAsksFor) {
  const WebGuard guard({.origins = "https://ui.example"});
  HttpRequest request = Of("localhost", "https://ui.example");
  HttpHeaders headers;
  guard.Allow(request, headers);
  EXPECT_THAT(headers, testing::Contains(Pair("Access-Control-Allow-Origin", "https://ui.example")));
  EXPECT_THAT(headers, testing::Contains(Pair("Vary", "Origin")));
  request.headers.emplace_back("Access-Control-Request-Headers", "authorization,x-stainless-os");
  request.headers.emplace_back("Access-Control-Request-Private-Network", "true");
  EXPECT_THAT(guard.Preflight(request),
              testing::IsSupersetOf({Pair("Access-Control-Allow-Headers", "authorization,x-stainless-os"),
                                     Pair("Access-Control-Allow-Private-Network", "true")}));
  HttpRequest odd = Of("localhost", "https://ui.example");
  odd.headers.emplace_back("Access-Control-Request-Headers", "a\x7f: b");
  EXPECT_THAT(guard.Preflight(odd),
              testing::Contains(Pair("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id")));
  HttpHeaders any;
  WebGuard({.origins = "*"}).Allow(request, any);
  EXPECT_THAT(any, testing::Contains(Pair("Access-Control-Allow-Origin", "*")));
}

}  // namespace
}  // namespace baton::router
