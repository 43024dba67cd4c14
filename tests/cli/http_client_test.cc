#include "cli/http_client.h"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

TEST(ParseHttpUrl, SplitsHostPortAndPath) {
  auto url = ParseHttpUrl("http://127.0.0.1:8000/v1/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "127.0.0.1");
  EXPECT_EQ(url->port, "8000");
  EXPECT_EQ(url->path, "/v1");
  EXPECT_EQ(ParseHttpUrl("http://host")->port, "80");
}

TEST(ParseHttpUrl, RefusesWhatIsNotHttp) {
  for (const char* bad : {"", "https://x", "127.0.0.1:8000", "http://"}) EXPECT_FALSE(ParseHttpUrl(bad).ok()) << bad;
}

}  // namespace
}  // namespace baton::cli
