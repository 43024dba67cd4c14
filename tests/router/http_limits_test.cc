// HttpServer against hostile and broken clients, without a router behind it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <future>
#include <thread>

#include "common/str_cat.h"
#include "http_client.h"
#include "router/http/http_server.h"

namespace baton::router {
namespace {

class HttpLimits : public testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) {
    options.host = "127.0.0.1";
    options.always = {{"Server", "baton/test"}};
    options.error_body = [](int status, const std::string& message) { return StrCat(status, "|", message); };
    auto server =
        HttpServer::Start(options, pool_, [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
          if (request.path == "/stream") {
            exchange->StartStream(200, {}, "text/event-stream");
            for (int i = 0; i < 3; ++i) exchange->Write(StrCat("data: ", i, "\n\n"));
            return exchange->End();
          }
          if (request.path == "/whole")
            return exchange->Respond(HttpResponse{200, {}, "text/plain", std::string(64 << 20, 'x')});
          if (request.path == "/turns") {
            exchange->StartStream(200, {}, "text/event-stream");
            return Turn(std::move(exchange), 0);
          }
          if (request.path == "/unanswered" || request.path == "/huge") {
            exchange->Watch([this] { gone_.set_value(); }, 0, [] {});
            if (request.path == "/unanswered") return waiting_.set_value(std::move(exchange));
            exchange->StartStream(200, {}, "text/event-stream");
            return exchange->Write(std::string(64 << 20, 'x'));
          }
          if (request.path == "/key")
            return exchange->Respond(HttpResponse{200, {}, "text/plain", std::string(request.Header("X-Key"))});
          exchange->Respond(HttpResponse{
              200, {}, "text/plain", StrCat(request.method, " ", request.path, "?", request.query, " ", request.body)});
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }

  // One event of 32 KiB a turn of the loop.
  static void Turn(std::shared_ptr<HttpExchange> exchange, int number) {
    if (number == kTurns) return exchange->End();
    exchange->Write(StrCat("data: ", number, std::string(32 << 10, '.'), "\n\n"));
    EventLoop& loop = exchange->loop();
    loop.Post([exchange = std::move(exchange), number]() mutable { Turn(std::move(exchange), number + 1); });
  }

  static constexpr int kTurns = 400;
  EventLoopPool pool_{2};
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::promise<void> gone_;                              // of /unanswered or /huge
  std::promise<std::shared_ptr<HttpExchange>> waiting_;  // of /unanswered
};

TEST_F(HttpLimits, AnAnswerHasItsHeadersAndBody) {
  Start();
  const HttpReply reply = Ask(port_, "POST", "/a?b=c", "{}");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "POST /a?b=c {}");
  EXPECT_EQ(reply.headers.at("server"), "baton/test");
  EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
}

TEST_F(HttpLimits, AConnectionServesManyRequestsAlsoPipelined) {
  Start();
  HttpConnection c(port_);
  c.Send(RequestText("GET", "/1", "") + RequestText("POST", "/2", "xy") + RequestText("GET", "/stream", ""));
  EXPECT_EQ(c.Receive().body, "GET /1? ");
  EXPECT_EQ(c.Receive().body, "POST /2? xy");
  EXPECT_EQ(EventsOf(c.Receive().body), (std::vector<std::string>{"0", "1", "2"}));
  c.Send(RequestText("GET", "/4", ""));
  EXPECT_EQ(c.Receive().body, "GET /4? ");
}

TEST_F(HttpLimits, BodiesMayComeInChunksAndByteByByte) {
  Start();
  HttpConnection chunked(port_);
  chunked.Send("POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Receive().body, "POST /c? abcde");
  HttpConnection slow(port_);
  for (char byte : RequestText("POST", "/s", "body")) slow.Send(std::string(1, byte));
  EXPECT_EQ(slow.Receive().body, "POST /s? body");
}

TEST_F(HttpLimits, HugeHeadersAre431) {
  Start({.max_header_bytes = 2048});
  const HttpReply reply = Ask(port_, "GET", "/", "", {{"X-Big", std::string(100000, 'a')}});
  EXPECT_EQ(reply.status, 431);
  EXPECT_NE(reply.body.find("2048"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_EQ(Ask(port_, "GET", "/", "", {{"X-Fits", std::string(1000, 'a')}}).status, 200);
}

// Neither counts as header or body: without a limit of its own, the reader would keep all of it.
TEST_F(HttpLimits, EndlessChunkExtensionsAndTrailersAre431) {
  Start({.max_header_bytes = 2048});
  const std::string head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string trailers;
  while (trailers.size() < 1 << 20) trailers += "X-Trailer: " + std::string(100, 't') + "\r\n";
  for (const std::string& rest :
       {"1;e=" + std::string(1 << 20, 'e'), "0\r\n" + trailers, "0\r\nX-Trailer: " + std::string(1 << 20, 't')}) {
    HttpConnection c(port_);
    c.Send(head + rest);
    EXPECT_EQ(c.Receive().status, 431) << rest.substr(0, 20);
  }
  HttpConnection c(port_);
  c.Send(head + "2;e=" + std::string(1000, 'e') + "\r\nok\r\n0\r\nX-Trailer: t\r\n\r\n");
  EXPECT_EQ(c.Receive().body, "POST /? ok");
}

TEST_F(HttpLimits, HugeBodiesAre413BeforeTheyAreRead) {
  Start({.max_body_bytes = 1000});
  HttpConnection c(port_);
  c.Send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n{");
  const HttpReply reply = c.Receive();
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("1000"), std::string::npos);
  HttpConnection chunked(port_);
  chunked.Send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(2048, 'x') +
               "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Receive().status, 413);
  EXPECT_EQ(Ask(port_, "POST", "/", std::string(1000, 'x')).status, 200);
}

// A handler that will not read a body anyway, for want of a key say, is asked before memory is kept for it.
TEST_F(HttpLimits, ABodyThatIsNotWantedIsNotWaitedFor) {
  Start({.takes_body = [](const HttpRequest& head) {
    return head.method == "POST" && head.path == "/open" && head.Header("X-Key") == "right" && head.body.empty();
  }});
  for (const char* head : {"Content-Length: 8000000\r\n", "Transfer-Encoding: chunked\r\n",
                           "Content-Length: 8000000\r\nExpect: 100-continue\r\n"}) {
    HttpConnection c(port_);
    c.Send(StrCat("POST /open HTTP/1.1\r\nHost: t\r\nX-Key: wrong\r\n", head, "\r\n"));
    const HttpReply reply = c.Receive();
    EXPECT_EQ(reply.status, 200) << head;
    EXPECT_EQ(reply.body, "POST /open? ");
    EXPECT_EQ(reply.headers.at("connection"), "close");
  }
  HttpConnection sends(port_);
  sends.Send(RequestText("POST", "/open", std::string(1 << 20, 'x'), {{"X-Key", "wrong"}}));
  EXPECT_EQ(sends.Receive().body, "POST /open? ") << "the answer is not lost though the client went on sending";
  const std::string body(100000, 'x');
  EXPECT_EQ(Ask(port_, "POST", "/open", body, {{"X-Key", "right"}}).body, "POST /open? " + body);
}

TEST_F(HttpLimits, ThereIsOneWayOfFramingABody) {
  Start();
  const std::string chunk = "3\r\nabc\r\n0\r\n\r\n";
  for (const auto& [head, status] : std::vector<std::pair<std::string, int>>{
           {"POST / HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
           {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
           {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
           {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: Chunked\r\n\r\n", 200}}) {
    HttpConnection c(port_);
    c.Send(head + chunk);
    EXPECT_EQ(c.Receive().status, status) << head;
  }
}

TEST_F(HttpLimits, TrailersSayNothingOfTheRequest) {
  Start();
  for (const size_t piece : {1, 1000}) {
    HttpConnection c(port_);
    std::string text = "POST /key HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    text += "3\r\nabc\r\n0\r\nX-Key: right\r\n\r\n";
    for (size_t at = 0; at < text.size(); at += piece) c.Send(text.substr(at, piece));
    EXPECT_EQ(c.Receive().body, "");
  }
}

TEST_F(HttpLimits, ARefusedClientThatKeepsSendingSeesTheAnswer) {
  Start({.max_body_bytes = 1000});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/", std::string(8 << 20, 'x')));
  EXPECT_EQ(c.Receive().status, 413);
}

TEST_F(HttpLimits, WhatIsNotHttpIs400AndClosed) {
  Start();
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and more of that\r\n\r\n", "GET\r\n\r\n",
                            "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nno colon here\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    SCOPED_TRACE(bytes);
    HttpConnection c(port_);
    c.Send(bytes);
    c.ShutdownSend();
    EXPECT_EQ(c.ReceiveAll().substr(0, 12), "HTTP/1.1 400");
  }
  EXPECT_EQ(Ask(port_, "GET", "/", "").status, 200) << "still serves";
}

TEST_F(HttpLimits, WhatAProxyMightReadOtherwiseIsRefused) {
  Start();
  const std::pair<const char*, int> cases[] = {{"GET / HTTP/1.1\r\n\r\n", 400},
                                               {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
                                               {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
                                               {"GET / HTTP/1.0\r\n\r\n", 200}};
  for (const auto& [bytes, status] : cases) {
    HttpConnection c(port_);
    c.Send(bytes);
    EXPECT_EQ(c.Receive().status, status) << bytes;
  }
}

TEST_F(HttpLimits, AWholeUrlIsAPath) {
  Start();
  HttpConnection c(port_);
  for (const auto& [url, path] : {std::pair{"http://t:8000/a?b=c", "GET /a?b=c "},
                                  {"http://t", "GET /? "},
                                  {"http://t?x", "GET /?x "},
                                  {"/redirect?to=http://u/v", "GET /redirect?to=http://u/v "}}) {
    c.Send(RequestText("GET", url, ""));
    EXPECT_EQ(c.Receive().body, path);
  }
}

TEST_F(HttpLimits, ExpectContinueIsAnsweredFirst) {
  Start();
  HttpConnection c(port_);
  c.Send("POST /e HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(c.ReceiveSome(), "HTTP/1.1 100 Continue\r\n\r\n");
  c.Send("ok");
  EXPECT_NE(c.ReceiveUntil("POST /e? ok").find("HTTP/1.1 200 OK"), std::string::npos);
  HttpConnection old(port_);
  old.Send("POST /e HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(old.ReceiveAll().substr(0, 15), "HTTP/1.1 200 OK") << "it would take 100 for the answer";
}

TEST_F(HttpLimits, HeadHasNoBodyAndHttp10Closes) {
  Start();
  const HttpReply head = Ask(port_, "HEAD", "/h", "");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "9");
  HttpConnection old(port_);
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string& all = old.ReceiveAll();
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_EQ(all.substr(all.find("\r\n\r\n") + 4), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
}

TEST_F(HttpLimits, HeaderAndFirstChunksAreOneWrite) {
  Start();
  for (int i = 0; i < 20; ++i) {
    HttpConnection c(port_);
    c.Send(RequestText("GET", "/stream", ""));
    const std::string first = c.ReceiveSome();
    EXPECT_NE(first.find("data: 0"), std::string::npos) << first;
    EXPECT_NE(first.find("data: 2"), std::string::npos) << first;
  }
}

// More than sockets hold: some turns are written at once, others wait for the client.
TEST_F(HttpLimits, WhatManyTurnsWriteArrivesWholeAndInOrder) {
  Start();
  HttpConnection c(port_);
  for (int round = 0; round < 2; ++round) {
    c.Send(RequestText("GET", "/turns", ""));
    const std::vector<std::string> events = EventsOf(c.Receive().body);
    ASSERT_EQ(events.size(), static_cast<size_t>(kTurns));
    for (int i = 0; i < kTurns; ++i) {
      EXPECT_EQ(events[static_cast<size_t>(i)], StrCat(i, std::string(32 << 10, '.'))) << i;
    }
  }
  EXPECT_EQ(Ask(port_, "GET", "/", "").status, 200);
}

TEST_F(HttpLimits, AClientThatStopsSendingIs408WithTheSecondsAndClosed) {
  Start({.read_timeout_ms = 300});
  for (const char* bytes :
       {"P", "POST / HTTP/1.1\r\nHost: t\r\nContent-Le", "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n123",
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12",
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n"}) {
    SCOPED_TRACE(bytes);
    const auto slow = ConnectionThatAsked(port_);
    slow->Send(bytes);
    const HttpReply reply = slow->Receive();
    EXPECT_EQ(reply.status, 408);
    EXPECT_NE(reply.body.find("408|The request did not arrive whole within 0.3 seconds"), std::string::npos)
        << reply.body;
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_EQ(slow->ReceiveAll(), "");
  }
  const auto waits = ConnectionThatAsked(port_);
  waits->Send("POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_NE(waits->ReceiveAll().find("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 408 Request Timeout"), std::string::npos);
  const auto second = ConnectionThatAsked(port_);
  second->Send(RequestText("GET", "/1", "") + "GET /2 HT");
  EXPECT_EQ(second->Receive().status, 200);
  EXPECT_EQ(second->Receive().status, 408) << "of the second request on a connection, too";
}

TEST_F(HttpLimits, IdleConnectionsAreClosedWithoutAWord) {
  Start({.keep_alive_ms = 50});
  HttpConnection idle(port_);
  EXPECT_EQ(idle.ReceiveAll(), "");
  EXPECT_EQ(ConnectionThatAsked(port_)->ReceiveAll(), "");
}

// The keep-alive time is for clients who have asked something.
TEST_F(HttpLimits, AConnectionThatNeverAsksHasTheTimeOfARequest) {
  Start({.read_timeout_ms = 300, .keep_alive_ms = 60000});
  HttpConnection silent(port_);
  char byte;
  EXPECT_EQ(recv(silent.fd(), &byte, 1, 0), 0) << "-1: still open after 20 s";
  const auto used = ConnectionThatAsked(port_);
  const timeval patience{0, 900'000};
  setsockopt(used->fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  EXPECT_EQ(recv(used->fd(), &byte, 1, 0), -1) << "0: closed within 900 ms";
}

// One address may not have them all: 127.0.0.2 is another one here.
TEST_F(HttpLimits, OneAddressLeavesConnectionsToOthers) {
  std::promise<std::string> why;
  Start({.limits = {.most = 2, .per_address = 1, .loopback_too = true},
         .closed = [&](const char* reason, const std::string&) { why.set_value(reason); }});
  HttpConnection busy(port_);
  busy.Send(RequestText("GET", "/unanswered", ""));
  const std::shared_ptr<HttpExchange> waiting = waiting_.get_future().get();
  HttpConnection second(port_);
  EXPECT_EQ(second.ReceiveAll(), "");
  EXPECT_EQ(why.get_future().get(), "max-connections-per-address");
  HttpConnection other(port_, 0, "127.0.0.2");
  other.Send(RequestText("GET", "/", ""));
  EXPECT_EQ(other.Receive().status, 200);
  busy.Close();
  while (server_->connections() > 1) std::this_thread::yield();
  HttpConnection again(port_);
  again.Send(RequestText("GET", "/", ""));
  EXPECT_EQ(again.Receive().status, 200);
}

TEST_F(HttpLimits, SomeAddressesThatTakeAllTheyGetLeaveConnectionsToOthers) {
  std::atomic<int> closed{0};
  Start({.limits = {.most = 16, .per_address = 8, .leaves_others = true, .loopback_too = true},
         .closed = [&](const char*, const std::string&) { ++closed; }});
  std::vector<std::unique_ptr<HttpConnection>> open;
  for (const char* from : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
    for (int i = 0; i < 16; ++i) {
      const int32_t before = server_->connections() + closed;
      open.push_back(std::make_unique<HttpConnection>(port_, 0, from));
      while (server_->connections() + closed == before) std::this_thread::yield();
    }
  }
  EXPECT_EQ(server_->connections(), 8 + 4 + 2);
  HttpConnection other(port_, 0, "127.0.0.5");
  other.Send(RequestText("GET", "/", ""));
  EXPECT_EQ(other.Receive().status, 200);
}

// It is never silent for long, and would keep 64 MiB, and its place among those that are answered, for hours.
TEST_F(HttpLimits, AClientThatTakesAnAnswerByteByByteIsDropped) {
  for (const char* path : {"/whole", "/huge"}) {  // complete, and not
    std::promise<std::string> why;
    const auto closed = [&](auto* reason, auto& address) { why.set_value(StrCat(reason, " of ", address)); };
    Start({.write_timeout_ms = 1000, .slowest_bytes_per_s = 256 << 20, .closed = closed});
    HttpConnection c(port_, 4096);
    c.Send(RequestText("GET", path, ""));
    auto told = why.get_future();
    const auto known = [&] { return told.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    for (char byte; !known() && recv(c.fd(), &byte, 1, 0) == 1;) continue;
    ASSERT_EQ(told.wait_for(std::chrono::seconds(20)), std::future_status::ready) << path;
    EXPECT_EQ(told.get(), "slow-reader of 127.0.0.1");
    server_->Stop();  // nobody says anything to `why` any more
  }
}

TEST_F(HttpLimits, AClientThatTakesNothingIsDropped) {
  Start({.write_timeout_ms = 50});
  HttpConnection c(port_, 4096);
  c.Send(RequestText("GET", "/huge", ""));
  ASSERT_EQ(gone_.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_LT(c.ReceiveAll().size(), size_t{64} << 20) << "what had been sent";
  server_->Stop();
  EXPECT_EQ(server_->connections(), 0);
}

TEST_F(HttpLimits, AClientThatLeavesIsNoticedThoughItSentMore) {
  Start();
  HttpConnection c(port_);
  c.Send(RequestText("GET", "/unanswered", "") + RequestText("GET", "/next", ""));
  const std::shared_ptr<HttpExchange> waiting = waiting_.get_future().get();
  c.Send(std::string(20000, 'x'));
  c.Close();
  EXPECT_EQ(gone_.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST_F(HttpLimits, ConnectionsThatDoNothingGiveWayAndThoseThatAreAnsweredStay) {
  Start({.limits = {.most = 2}});
  HttpConnection busy(port_), silent(port_);
  busy.Send(RequestText("GET", "/unanswered", ""));
  const std::shared_ptr<HttpExchange> waiting = waiting_.get_future().get();
  // In the place of the silent one, then of an idle one, which has its answer a moment before it counts as idle.
  for (int served = 0, tried = 0; served < 3; ++tried) {
    ASSERT_LT(tried, 10000);
    served += Ask(port_, "GET", "/").status == 200 ? 1 : 0;
  }
  EXPECT_EQ(silent.ReceiveAll(), "");
  waiting->Respond(HttpResponse{200, {}, "text/plain", "stayed"});
  EXPECT_EQ(busy.Receive().status, 200);
}

TEST_F(HttpLimits, AnAddressInUseNamesHostPortAndFlag) {
  Start();
  HttpServer::Options options;
  options.host = "127.0.0.1";
  options.port = static_cast<uint16_t>(port_);
  const auto second = HttpServer::Start(options, pool_, nullptr);
  ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  EXPECT_NE(std::string(second.status().message()).find(StrCat("127.0.0.1:", port_)), std::string::npos);
  EXPECT_NE(std::string(second.status().message()).find("--port"), std::string::npos);
  options.host = "192.0.2.1";  // of no machine
  EXPECT_EQ(HttpServer::Start(options, pool_, nullptr).status().code(), absl::StatusCode::kPermissionDenied);
  options.host = "no such host";
  EXPECT_EQ(HttpServer::Start(options, pool_, nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HttpLimits, StopEndsEveryConnection) {
  Start();
  HttpConnection idle(port_), half(port_);
  idle.Send(RequestText("GET", "/", ""));
  EXPECT_EQ(idle.Receive().status, 200);
  half.Send("GET / HT");
  server_->Stop();
  EXPECT_EQ(server_->connections(), 0);
  idle.ReceiveAll();
  half.ReceiveAll();
}

}  // namespace
}  // namespace baton::router
