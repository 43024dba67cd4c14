// Long bodies at HttpServer: they are read in another way than short ones, and are whole whatever pieces they come in.
#include <gtest/gtest.h>

#include <random>

#include "common/str_cat.h"
#include "http_client.h"
#include "router/http/http_server.h"

namespace baton::router {
namespace {

std::string BodyOf(size_t bytes) {
  std::string out;
  for (size_t i = 0; out.size() < bytes; ++i) absl::StrAppend(&out, i, ",");
  out.resize(bytes);
  return out;
}

class HttpBody : public testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) {
    options.host = "127.0.0.1";
    options.error_body = [](int status, const std::string& message) { return StrCat(status, "|", message); };
    auto server = HttpServer::Start(options, pool_, [](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      exchange->Respond(HttpResponse{200, {}, "text/plain", StrCat(request.path, " ", request.body)});
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }

  EventLoopPool pool_{2};
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
};

TEST_F(HttpBody, ALongBodyIsWholeAndTheNextRequestIsNotOfIt) {
  Start();
  for (const size_t bytes : {size_t{32 << 10}, size_t{220'000}, size_t{3 << 20}}) {
    HttpConnection c(port_);
    const std::string body = BodyOf(bytes);
    c.Send(RequestText("POST", "/1", body) + RequestText("POST", "/2", body + "x") + RequestText("GET", "/3", ""));
    EXPECT_EQ(c.Receive().body, "/1 " + body);
    EXPECT_EQ(c.Receive().body, StrCat("/2 ", body, "x"));
    EXPECT_EQ(c.Receive().body, "/3 ");
  }
}

TEST_F(HttpBody, ALongBodyMayComeInAnyPieces) {
  Start();
  std::mt19937 random(7);
  const std::string body = BodyOf(700'000), text = RequestText("POST", "/", body);
  for (const size_t most : {size_t{200'000}, size_t{20'000}, size_t{700}}) {
    HttpConnection c(port_);
    for (size_t at = 0, piece = 0; at < text.size(); at += piece) {
      piece = 1 + random() % most;
      c.Send(std::string_view(text).substr(at, piece));
    }
    EXPECT_EQ(c.Receive().body, "/ " + body) << "pieces of up to " << most << " bytes";
  }
}

TEST_F(HttpBody, ALongBodyThatDoesNotComeWholeInTimeIs408) {
  Start({.read_timeout_ms = 50});
  HttpConnection c(port_);
  const std::string text = RequestText("POST", "/", BodyOf(220'000));
  c.Send(std::string_view(text).substr(0, text.size() - 1));
  const HttpReply reply = c.Receive();
  EXPECT_EQ(reply.status, 408);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  c.Send("x");  // what is sent now belongs to nothing
  EXPECT_EQ(c.ReceiveAll(), "");
}

TEST_F(HttpBody, WhoLeavesWithinALongBodyIsGone) {
  Start();
  const std::string text = RequestText("POST", "/", BodyOf(220'000));
  HttpConnection leaves(port_);
  leaves.Send(std::string_view(text).substr(0, 100'000));
  leaves.ShutdownSend();
  EXPECT_EQ(leaves.ReceiveAll(), "");
  EXPECT_EQ(Ask(port_, "POST", "/", "after").body, "/ after");
}

}  // namespace
}  // namespace baton::router
