// Long bodies at HttpServer: they are read in another way than short ones, and are whole whatever pieces they come in.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/str_cat.h"
#include "http_client.h"
#include "router/http/arriving_bodies.h"
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
    options.closed = [this](const char* why, const std::string& address) {
      std::lock_guard lock(mutex_);
      closed_.push_back(StrCat(why, " of ", address));
    };
    options.error_body = [](int status, const std::string& message) { return StrCat(status, "|", message); };
    auto server = HttpServer::Start(options, pool_, [](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      if (request.path == "/throws") throw std::runtime_error("nobody caught it");
      if (request.path == "/host") request.body = std::string(request.Header("Host"));
      exchange->Respond(HttpResponse{200, {}, "text/plain", StrCat(request.path, " ", request.body)});
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }

  std::vector<std::string> Closed() {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  std::mutex mutex_;
  std::vector<std::string> closed_;
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

// Kilobytes that say nothing before each byte: neither the loop nor the time of the request is theirs.
TEST_F(HttpBody, ChunksThatAreAllFrameAreNotReadWithoutEnd) {
  Start({.max_body_bytes = 1 << 20});
  const std::string head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string hollow = head, tiny = head;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&hollow, "1;", std::string(8000, 'a'), "\r\nx\r\n");
  for (int i = 0; i < 300'000; ++i) tiny += "1\r\nx\r\n";
  HttpConnection c(port_);
  c.Send(hollow);
  const HttpReply reply = c.Receive();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.body,
            "413|The body with what frames its chunks is longer than 4 times 1048576 bytes (--max-body-bytes).");
  HttpConnection small(port_);
  small.Send(tiny + "0\r\n\r\n");
  EXPECT_EQ(small.Receive().body.size(), 300'002u) << "two megabytes of frames are no more than three bodies";
}

TEST_F(HttpBody, WhatReadersFrameOrJoinDifferentlyIsRefused) {
  Start();
  for (const char* heads :
       {"Content-Length: 2\r\nContent-Length: 2", "Content-Length: 2, 2", "Content-Length: 2\r\nContent-Length: 3",
        "Transfer-Encoding:\r\n chunked", "Transfer-Encoding: chun\r\n\tked", "X-A: b\r\n c\r\nContent-Length: 2",
        "Content-Length:\r\n 2", "Content-Length: 2\r\nTransfer-Encoding: chunked"}) {
    HttpConnection c(port_);
    c.Send(StrCat("POST / HTTP/1.1\r\nHost: t\r\n", heads, "\r\n\r\n{}"));
    EXPECT_EQ(c.Receive().status, 400) << heads;
  }
  const std::string lines = "a\r\n b\r\n\tc";
  EXPECT_EQ(Ask(port_, "POST", "/", lines).body, "/ " + lines) << "a body's lines may begin with blanks";
}

// RFC 9112, 2.2: some clients send one behind a body.
TEST_F(HttpBody, EmptyLinesBeforeARequestAreNotOfIt) {
  Start();
  HttpConnection c(port_);
  c.Send(StrCat("\r\n", RequestText("POST", "/1", "one"), "\r\n", RequestText("POST", "/2", "\r\n"), "\r\n\r\n"));
  EXPECT_EQ(c.Receive().body, "/1 one");
  EXPECT_EQ(c.Receive().body, "/2 \r\n");
  for (const char piece : std::string_view("\r\n")) c.Send(std::string(1, piece));
  c.Send(RequestText("GET", "/3", ""));
  EXPECT_EQ(c.Receive().body, "/3 ");
  HttpConnection bare(port_);
  bare.Send("\n" + RequestText("GET", "/", ""));
  EXPECT_EQ(bare.Receive().status, 400) << "half of a line's end is none";
}

TEST_F(HttpBody, AWholeUrlSaysTheHost) {
  Start();
  HttpConnection c(port_);
  c.Send("GET http://there.example:80/host HTTP/1.1\r\nHost: here.example\r\n\r\n");
  EXPECT_EQ(c.Receive().body, "/host there.example:80");
}

TEST_F(HttpBody, ARequestThatFailsInsideEndsItsConnectionAndKeepsNoPlace) {
  Start({.limits = {.most = 2}});
  for (int i = 0; i < 20; ++i) {
    HttpConnection c(port_);
    c.Send(RequestText("GET", "/throws", ""));
    EXPECT_EQ(c.ReceiveAll(), "");
    while (server_->connections() > 0) std::this_thread::yield();
  }
  EXPECT_EQ(Ask(port_, "GET", "/").status, 200);
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

TEST_F(HttpBody, WhoSendsManyHalvesOfBodiesLosesThemAndOthersAreRead) {
  Start({.max_body_bytes = 1 << 20, .most_arriving_bytes = 4 << 20});
  const std::string body = BodyOf(900'000), text = RequestText("POST", "/", body);
  const std::string_view first = std::string_view(text).substr(0, text.size() - 1000);
  HttpConnection honest(port_, 0, "127.0.0.2");
  honest.Send(first);
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 12; ++i) {
    held.push_back(std::make_unique<HttpConnection>(port_));
    held.back()->Send(first);
  }
  // Six are kept at most, that of the other address among them.
  while (Closed().size() < 7) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  honest.Send(std::string_view(text).substr(first.size()));
  EXPECT_EQ(honest.Receive().body, "/ " + body);
  std::map<int, int> answers;  // status → how many
  for (const auto& one : held) {
    one->Send(std::string_view(text).substr(first.size()));
    ++answers[one->Receive().status];
  }
  EXPECT_GE(answers[503], 7);
  EXPECT_GE(answers[200], 3);
  EXPECT_EQ(answers[503] + answers[200], 12);
  EXPECT_EQ(Closed(), std::vector<std::string>(static_cast<size_t>(answers[503]), "arriving-bodies of 127.0.0.1"));
}

TEST(ArrivingBodies, OfTheAddressWithTheMostTheOldestIsGivenUp) {
  ArrivingBodies all(100);
  std::string given_up;
  const auto body = [&](const char* from, const char* name) {
    return std::make_unique<ArrivingBodies::Body>(all, from, [&given_up, name] { given_up += name; });
  };
  auto a = body("1", "a"), b = body("2", "b"), c = body("2", "c"), d = body("2", "d");
  a->Has(30);
  for (const auto* one : {&c, &b, &d}) (*one)->Has(20);
  EXPECT_EQ(given_up, "");
  d->Has(40);
  EXPECT_EQ(given_up, "b");
  b->Has(1000);
  EXPECT_EQ(given_up, "b") << "it counts no more";
  c.reset();
  a->Has(61);
  EXPECT_EQ(given_up, "ba");
  d->Has(101);
  EXPECT_EQ(given_up, "bad") << "one alone, too";
}

TEST_F(HttpBody, ALongBodyThatDoesNotComeWholeInTimeIs408) {
  Start({.read_timeout_ms = 50});
  const auto connection = ConnectionThatAsked(port_);
  HttpConnection& c = *connection;
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
