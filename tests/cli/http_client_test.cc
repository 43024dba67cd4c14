#include "cli/http_client.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <thread>
#include <vector>

#include "common/str_cat.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;

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

/// Answers one request with `head` and then the same bytes without end, or until the client leaves.
class EndlessServer {
 public:
  EndlessServer(std::string head, char byte) : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this, head = std::move(head), byte] {
      boost::system::error_code error;
      asio::ip::tcp::socket client(context_);
      acceptor_.accept(client, error);
      std::string request;
      asio::read_until(client, asio::dynamic_buffer(request), "\r\n\r\n", error);
      asio::write(client, asio::buffer(head), error);
      const std::string piece(1 << 20, byte);
      while (!error) asio::write(client, asio::buffer(piece), error);
    });
  }
  ~EndlessServer() { thread_.join(); }
  HttpUrl url() const { return ParseHttpUrl(StrCat("http://127.0.0.1:", acceptor_.local_endpoint().port())).value(); }

 private:
  asio::io_context context_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST(HttpClient, AnAnswerWithoutEndIsGivenUp) {
  EndlessServer server("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", ' ');
  const auto answer = HttpGet(server.url(), "/workers", "");
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << answer.status();
  EXPECT_NE(answer.status().message().find("at most 67108864"), std::string::npos) << answer.status();
}

TEST(HttpClient, AnEventWithoutEndIsGivenUp) {
  EndlessServer server("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\ndata: ", 'x');
  std::vector<std::string> events;
  const auto answer =
      HttpEvents(server.url(), "/events", "", [&](std::string_view event) { events.emplace_back(event); }, nullptr);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << answer.status();
  EXPECT_NE(answer.status().message().find("more than 16777216 bytes"), std::string::npos) << answer.status();
  EXPECT_EQ(events, std::vector<std::string>{"first"});
}

}  // namespace
}  // namespace baton::cli
