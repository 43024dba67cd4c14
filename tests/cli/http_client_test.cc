#include "cli/http_client.h"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

TEST(ParseHttpUrl, TakesAnAddressAsPeopleWriteIt) {
  struct {
    const char *text, *host, *port, *path;
  } const rows[] = {{"http://127.0.0.1:8000", "127.0.0.1", "8000", ""},
                    {"http://127.0.0.1:8000/v1", "127.0.0.1", "8000", ""},
                    {"http://127.0.0.1:8000/v1/", "127.0.0.1", "8000", ""},
                    {"127.0.0.1:8000", "127.0.0.1", "8000", ""},
                    {"localhost:18600/v1", "localhost", "18600", ""},
                    {":18600", "127.0.0.1", "18600", ""},
                    {"gpu7", "gpu7", "8000", ""},
                    {"http://host", "host", "80", ""},
                    {"http://proxy/llm/v1", "proxy", "80", "/llm"},
                    {"https://host", "host", "443", ""},
                    {"https://host:8443/v1", "host", "8443", ""},
                    {"http://[::1]:8000/v1", "::1", "8000", ""},
                    {"[::1]", "::1", "8000", ""}};
  for (const auto& row : rows) {
    const auto url = ParseHttpUrl(row.text);
    ASSERT_TRUE(url.ok()) << row.text << ": " << url.status();
    EXPECT_EQ(url->host, row.host) << row.text;
    EXPECT_EQ(url->port, row.port) << row.text;
    EXPECT_EQ(url->path, row.path) << row.text;
    EXPECT_EQ(url->tls, std::string_view(row.text).starts_with("https")) << row.text;
  }
}

TEST(ParseHttpUrl, RefusesWhatIsNotHttp) {
  for (const char* bad : {"", "grpc://x", "https://", "http://", "http:///v1", "host:port", "http://host:"})
    EXPECT_FALSE(ParseHttpUrl(bad).ok()) << bad;
}

}  // namespace
}  // namespace baton::cli
