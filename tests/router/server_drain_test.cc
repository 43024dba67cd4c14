// A router that drains: what its clients hear, on connections that they have and on new ones.
#include "router_fixture.h"

namespace baton::router {
namespace {

TEST_F(RouterTest, DrainRefusesNewRequestsAndLetsRunningOnesFinish) {
  FakeWorker worker({.hold_after = 1});
  Start({&worker});
  HttpConnection c(port_);
  c.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":9,"stream":true)")));
  c.ReceiveUntil("data: ");
  server_->Drain();
  EXPECT_EQ(Complete().status, 503);
  EXPECT_EQ(Json::parse(Ask(port_, "GET", "/ready").body)["status"], "draining");
  EXPECT_FALSE(server_->WaitDrained(std::chrono::milliseconds(20)));
  EXPECT_TRUE(server_->Busy());
  worker.Release();
  EXPECT_TRUE(server_->WaitDrained(std::chrono::seconds(10)));
  EXPECT_FALSE(server_->Busy());
  server_->Stop();
  const std::vector<std::string> events = EventsOf(c.Receive().body);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(StreamedText(events), FakeWorker::TextOf(0, 8, 9));
}

TEST_F(RouterTest, ADrainWaitsForAnIdleGrpcClientToGoAndIsNotBusyMeanwhile) {
  FakeWorker worker;
  Start({&worker});
  HttpConnection stays(server_->grpc_port());
  stays.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
  ASSERT_NE(stays.ReceiveSome(), "") << "SETTINGS";
  server_->Drain();
  EXPECT_FALSE(server_->WaitDrained(std::chrono::milliseconds(20))) << "a call of its may be on its way";
  EXPECT_FALSE(server_->Busy());
  EXPECT_TRUE(server_->WaitDrained(std::chrono::seconds(10)));
}

// Behind an address that several routers share a new connection leads to another one, an old one never does.
TEST_F(RouterTest, DrainSendsClientsOfOldConnectionsElsewhere) {
  FakeWorker worker({.hold_after = 1});
  Start({&worker});
  const std::string live = RequestText("GET", "/live", "");
  HttpConnection idle(port_), streaming(port_), beginning(port_);
  for (HttpConnection* c : {&idle, &streaming, &beginning}) {
    c->Send(live);
    EXPECT_EQ(c->Receive().headers.at("connection"), "keep-alive");
  }
  streaming.Send(RequestText("POST", "/v1/completions", Completion(R"("max_tokens":9,"stream":true)")));
  streaming.ReceiveUntil("data: ");
  beginning.Send(live.substr(0, 10));
  server_->Drain();
  EXPECT_EQ(idle.ReceiveSome(), "") << "nobody asked anything";
  HttpConnection fresh(port_);
  for (HttpConnection* c : {&fresh, &beginning}) {
    c->Send(c == &beginning ? live.substr(10) : RequestText("POST", "/v1/completions", Completion()));
    const HttpReply reply = c->Receive();
    EXPECT_EQ(reply.status, c == &beginning ? 200 : 503);
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_EQ(c->ReceiveSome(), "");
  }
  worker.Release();
  EXPECT_EQ(EventsOf(streaming.Receive().body).back(), "[DONE]") << "it began to be answered before";
  EXPECT_EQ(streaming.ReceiveSome(), "") << "and was not told that the connection ends, but it does";
}

// Its client could not know of the drain, and may not ask elsewhere what it has asked here.
TEST_F(RouterTest, ARequestThatIsOnItsWayWhenADrainBeginsIsAnswered) {
  FakeWorker worker;
  Start({&worker});
  const std::string request = RequestText("POST", "/v1/completions", Completion());
  HttpConnection half(port_), unused(port_), stays(port_);
  half.Send(request.substr(0, request.size() - 5));
  ASSERT_EQ(Ask(port_, "GET", "/live").status, 200) << "connections are taken in their order";
  server_->Drain();
  EXPECT_FALSE(server_->WaitDrained(std::chrono::milliseconds(20))) << "nothing runs, and one asks";
  half.Send(request.substr(request.size() - 5));
  unused.Send(request);
  for (HttpConnection* c : {&half, &unused}) {
    const HttpReply reply = c->Receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("connection"), "close");
  }
  EXPECT_EQ(Complete().status, 503) << "who comes later";
  EXPECT_TRUE(server_->WaitDrained(std::chrono::seconds(10))) << "who says nothing is not waited for";
}

}  // namespace
}  // namespace baton::router
