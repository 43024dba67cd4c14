#include "cli/http_client.h"

#include <gtest/gtest.h>
#include <poll.h>

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
  for (const char* bad : {"", "grpc://x", "https://", "http://", "http:///v1", "host:port",
                          "http://host:", "http://:8000", "://host", "ftp://host", "http://::1:8000",
                          "http://user:word@host", "http://a b:80", "http://1.2.3:80", "http://host:80:80"})
    EXPECT_FALSE(ParseHttpUrl(bad).ok()) << bad;
}

TEST(ParseHttpUrl, AnIpv6AddressWithoutBracketsIsToldWhatItLacks) {
  for (const char* bad : {"http://::1:8000", "::1:8000", "http://fd00::1:80", "https://::1"}) {
    const auto url = ParseHttpUrl(bad);
    EXPECT_NE(url.status().message().find("an IPv6 address has brackets"), std::string::npos) << bad << url.status();
  }
}

TEST(ParseHttpUrl, APortIsFrom1To65535) {
  for (const char* bad : {"http://localhost:99999", "http://localhost:0", "localhost:-1", "localhost:65536",
                          "[::1]:70000", "http://localhost:8000x/v1", "http://localhost:18446744073709551617"}) {
    const auto url = ParseHttpUrl(bad);
    EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(url.status().message().find("no port from 1 to 65535"), std::string::npos) << url.status();
  }
  EXPECT_EQ(ParseHttpUrl("HTTP://localhost:65535").value().port, "65535");
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
  HttpUrl url() const {
    HttpUrl url = ParseHttpUrl(StrCat("http://127.0.0.1:", acceptor_.local_endpoint().port())).value();
    url.patience = Duration::zero();
    return url;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

/// Takes connections and says `piece` again and again, in pauses, until its client leaves; nothing: is silent.
class SlowServer {
 public:
  explicit SlowServer(std::string piece = "") : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this, piece = std::move(piece)] {
      boost::system::error_code error;
      asio::ip::tcp::socket client(context_);
      acceptor_.accept(client, error);
      char byte;
      client.non_blocking(true, error);
      for (;;) {  // its client's bytes are read away; their end is the end
        const size_t got = client.read_some(asio::buffer(&byte, 1), error);
        if (error && error != asio::error::would_block) return;
        if (got > 0) continue;
        if (!piece.empty()) asio::write(client, asio::buffer(piece), error);
        pollfd waits{client.native_handle(), POLLIN, 0};
        poll(&waits, 1, 20);
      }
    });
  }
  ~SlowServer() { thread_.join(); }
  HttpUrl url(const char* scheme = "http") const {
    HttpUrl url = ParseHttpUrl(StrCat(scheme, "://127.0.0.1:", acceptor_.local_endpoint().port())).value();
    url.patience = std::chrono::milliseconds(200);
    return url;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

void ExpectTimeIsOver(const absl::StatusOr<HttpResponse>& answer, const HttpUrl& url, std::string_view missing) {
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable) << answer.status();
  EXPECT_EQ(answer.status().message(),
            StrCat(url.tls ? "https" : "http", "://127.0.0.1:", url.port, ": ", missing, " within 0.2 s"));
}

TEST(HttpClient, AServerThatTakesTheConnectionAndIsSilentIsGivenUp) {
  SlowServer server;
  ExpectTimeIsOver(HttpGet(server.url(), "/ready", ""), server.url(), "no answer");
}

TEST(HttpClient, AHeadThatTricklesIsGivenUp) {
  SlowServer server("H");
  ExpectTimeIsOver(HttpGet(server.url(), "/ready", ""), server.url(), "no answer");
}

TEST(HttpClient, ABodyThatTricklesIsGivenUp) {
  SlowServer server("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
  ExpectTimeIsOver(HttpGet(server.url(), "/ready", ""), server.url(), "no end of the answer");
}

TEST(HttpClient, AHandshakeOfTlsThatIsSilentIsGivenUp) {
  SlowServer server;
  ExpectTimeIsOver(HttpGet(server.url("https"), "/ready", ""), server.url("https"), "no end of the TLS handshake");
}

TEST(HttpClient, AnEventStreamMayLastLongerThanItsHead) {
  SlowServer server("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n");
  const HttpUrl url = server.url();
  const TimePoint begin = SteadyClock().Now();
  Cancellation stop;
  bool late = false;
  const auto on_event = [&](std::string_view) {
    late = SteadyClock().Now() - begin > 2 * url.patience;
    if (late) stop.Cancel();
  };
  const auto answer = HttpEvents(url, "/events", "", on_event, &stop);
  EXPECT_TRUE(late) << answer.status();
}

TEST(HttpClient, AnEventStreamThatNobodyWantsIsABody) {
  SlowServer server("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n");
  ExpectTimeIsOver(HttpPost(server.url(), "/workers/drain", "", "{}", nullptr), server.url(), "no end of the answer");
}

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
