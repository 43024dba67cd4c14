// HttpServer on a port that speaks TLS, without a router behind it: texts arrive whole, and who is refused is counted.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "common/str_cat.h"
#include "common/tls/context.h"
#include "common/tls/openssl.h"
#include "http_client.h"
#include "router/http/http_server.h"
#include "tests/common/tls_fixture.h"

namespace baton::router {
namespace {

using testing::HasSubstr;
using tls::Refusal;

// A client's connection; Receive… as HttpConnection's, of the text.
class TlsConnection {
 public:
  TlsConnection(int port, std::shared_ptr<const tls::Context> context, int receive_buffer_bytes = 0)
      : wire_(port, receive_buffer_bytes), session_(std::move(context)) {}

  void Send(std::string_view text) {
    status_ = session_.Write(text);
    wire_.Send(session_.TakeWire());
  }
  // Everything up to `end`, or up to the end of the connection.
  std::string Until(std::string_view end) {
    while (text_.find(end) == std::string::npos && Turn()) continue;
    const size_t at = text_.find(end);
    std::string out = text_.substr(0, at == std::string::npos ? at : at + end.size());
    text_.erase(0, out.size());
    return out;
  }
  // A whole answer that has a Content-Length; its body.
  std::string Body() {
    const std::string head = Until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return "no answer: " + head;
    const size_t bytes = std::stoul(head.substr(at + 16));
    while (text_.size() < bytes && Turn()) continue;
    std::string out = text_.substr(0, bytes);
    text_.erase(0, bytes);
    return out;
  }
  bool Turn() {
    wire_.Send(session_.TakeWire());
    const std::string more = wire_.ReceiveSome();
    if (more.empty()) return false;
    if (status_.ok()) status_ = session_.Feed(more);
    wire_.Send(session_.TakeWire());
    text_ += session_.TakePlain();
    return status_.ok();
  }
  bool Established() {
    while (!session_.established() && Turn()) continue;
    return session_.established();
  }
  tls::Session& session() { return session_; }
  const absl::Status& status() const { return status_; }

 private:
  HttpConnection wire_;
  tls::Session session_;
  std::string text_;
  absl::Status status_;
};

class HttpTlsTest : public testing::Test {
 protected:
  void Start(HttpTls tls = {}, bool ask_client = false) {
    auto context = tls::Context::ForServer(tls::MustLoad(dir_.Make(authority_, "server", {"localhost"})),
                                           {ask_client, {"http/1.1"}});
    ASSERT_TRUE(context.ok()) << context.status();
    tls.context = [made = *context] { return made; };
    tls.refused = [this](Refusal why, const std::string& address, const std::string& message) {
      std::lock_guard lock(mutex_);
      EXPECT_EQ(address, "127.0.0.1");
      refused_.emplace_back(why, message);
      changed_.notify_all();
    };
    HttpServer::Options options;
    options.host = "127.0.0.1";
    options.tls = std::move(tls);
    auto server = HttpServer::Start(options, pool_, Answer);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  static void Answer(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
    if (request.path == "/turns") {
      exchange->StartStream(200, {}, "text/event-stream");
      return Event(std::move(exchange), 0);
    }
    const std::string body = request.path == "/huge" ? std::string(8 << 20, 'h') : request.body;
    exchange->Respond(HttpResponse{200, {}, "text/plain", body});
  }
  static void Event(std::shared_ptr<HttpExchange> exchange, int number) {
    if (number == kEvents) return exchange->End();
    exchange->Write(StrCat("data: ", number, std::string(number * 97 % 40000, '.'), "\n\n"));
    EventLoop& loop = exchange->loop();
    loop.Post([exchange = std::move(exchange), number]() mutable { Event(std::move(exchange), number + 1); });
  }
  std::shared_ptr<const tls::Context> Client(const tls::TlsFiles& files, std::vector<std::string> alpn = {"http/1.1"}) {
    auto made = tls::Context::ForClient(tls::MustLoad(files), {{"localhost"}, "localhost", std::move(alpn)});
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  std::unique_ptr<TlsConnection> Connect(int receive_buffer_bytes = 0) {
    return std::make_unique<TlsConnection>(server_->port(), Client({"", "", dir_.path("ca.crt")}),
                                           receive_buffer_bytes);
  }
  // The `number`th refusal, from 0 on.
  std::pair<Refusal, std::string> Refused(size_t number = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return refused_.size() > number; }));
    return number < refused_.size() ? refused_[number] : std::pair{Refusal::kHandshake, std::string("nobody")};
  }

  static constexpr int kEvents = 300;
  tls::CertDir dir_;
  const tls::CertAndKey authority_ = tls::TestAuthority("authority A");
  std::mutex mutex_;  // guards refused_
  std::condition_variable changed_;
  std::vector<std::pair<Refusal, std::string>> refused_;
  EventLoopPool pool_{2};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTlsTest, TextsOfAnySizeArriveWholeAndInOrder) {
  Start();
  auto c = Connect();
  for (const size_t bytes : {1, 4095, 4096, 16384, 16385, 220000, 3000000}) {
    std::string body(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<char>('a' + (i * 7 + i / 251) % 26);
    c->Send(RequestText("POST", "/", body));
    EXPECT_TRUE(c->Body() == body) << bytes << " " << c->status();
  }
  EXPECT_EQ(c->session().alpn(), "http/1.1");
  c->Send(RequestText("GET", "/huge", ""));
  EXPECT_EQ(c->Body().size(), 8u << 20);
}

TEST_F(HttpTlsTest, RequestsOfOneRecordAndBytesOfOneRequestAreReadAlike) {
  Start();
  auto c = Connect();
  std::string all;
  for (int i = 0; i < 200; ++i) all += RequestText("POST", "/", StrCat("number ", i));
  c->Send(all);  // more than one read of an idle connection takes
  for (int i = 0; i < 200; ++i) ASSERT_EQ(c->Body(), StrCat("number ", i));
  for (const char byte : RequestText("POST", "/", "slow")) c->Send(std::string(1, byte));
  EXPECT_EQ(c->Body(), "slow");
}

TEST_F(HttpTlsTest, AStreamReachesAClientThatReadsAndOneThatWaitsFirst) {
  Start();
  for (const bool waits : {false, true}) {
    auto c = Connect(waits ? 64 << 10 : 0);  // less than there is: the server has to wait
    c->Send(RequestText("GET", "/turns", ""));
    ASSERT_TRUE(c->Established());
    const std::string rest = c->Until("\r\n0\r\n\r\n");
    EXPECT_THAT(rest, HasSubstr(StrCat("data: ", kEvents - 1, ".")));
    EXPECT_EQ(rest.find("data: 299."), rest.rfind("data: "));
  }
}

// A client that takes new keys, and has the server take some, as often as it likes.
class KeyChanger {
 public:
  explicit KeyChanger(int port)
      : wire_(port, 16 << 10), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_.get())) {
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
    while (SSL_do_handshake(ssl_.get()) != 1 && Turn()) continue;
    Flush();
  }
  void Send(std::string_view text) {
    EXPECT_EQ(SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())), static_cast<int>(text.size()));
    Flush();
  }
  void ChangeKeys(int times, bool theirs_too) {
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(SSL_key_update(ssl_.get(), theirs_too ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED), 1);
      EXPECT_EQ(SSL_do_handshake(ssl_.get()), 1);
    }
    Flush();
  }
  // `bytes` of text, or all that come before the end.
  std::string Text(size_t bytes) {
    std::string out;
    char piece[16384];
    while (out.size() < bytes) {
      const int got = SSL_read(ssl_.get(), piece, sizeof piece);
      if (got > 0) out.append(piece, static_cast<size_t>(got));
      if (got <= 0 && (SSL_get_error(ssl_.get(), got) != SSL_ERROR_WANT_READ || !Turn())) break;
    }
    return out;
  }

 private:
  void Flush() {
    char piece[16384];
    for (int bytes = 0; (bytes = BIO_read(out_, piece, sizeof piece)) > 0;)
      wire_.Send({piece, static_cast<size_t>(bytes)});
  }
  bool Turn() {
    Flush();
    const std::string more = wire_.ReceiveSome();
    BIO_write(in_, more.data(), static_cast<int>(more.size()));
    return !more.empty();
  }

  HttpConnection wire_;
  tls::ContextPtr context_;
  tls::SessionPtr ssl_;
  BIO *const in_ = BIO_new(BIO_s_mem()), *const out_ = BIO_new(BIO_s_mem());  // of ssl_
};

// What the server has to say to that must not touch what is on its way to the socket.
TEST_F(HttpTlsTest, NewKeysOfAClientThatDoesNotReadYetChangeNoAnswer) {
  Start();
  KeyChanger c(server_->port());
  c.Send(RequestText("GET", "/huge", ""));
  std::string answer = c.Text(100'000);
  for (int i = 0; i < 10; ++i) {  // the server waits for the socket all the while
    c.ChangeKeys(4, /*theirs_too=*/true);
    answer += c.Text(50'000);
  }
  answer += c.Text((8 << 20) + answer.find("hhh") - answer.size());
  EXPECT_TRUE(answer.ends_with(std::string(8 << 20, 'h'))) << answer.size();
}

TEST_F(HttpTlsTest, AClientThatChangesItsKeysWithoutEndIsLeft) {
  Start();
  for (const bool theirs_too : {false, true}) {
    KeyChanger c(server_->port());
    c.Send(RequestText("POST", "/", "x"));
    EXPECT_THAT(c.Text(20), HasSubstr("HTTP/1.1 200"));
    c.ChangeKeys(2000, theirs_too);
    c.Text(1000);
    c.Send(RequestText("POST", "/", "y"));
    EXPECT_EQ(c.Text(1), "") << "it is closed";
  }
  auto other = Connect();
  other->Send(RequestText("POST", "/", "x"));
  EXPECT_EQ(other->Body(), "x");
}

TEST_F(HttpTlsTest, TheEndIsSaidInTls) {
  Start();
  auto c = Connect();
  c->Send(RequestText("GET", "/", "", {{"Connection", "close"}}));
  EXPECT_EQ(c->Body(), "");
  while (c->Turn()) continue;
  EXPECT_TRUE(c->session().peer_closed()) << c->status();
}

TEST_F(HttpTlsTest, PlainTextIsAnsweredInPlainText) {
  Start();
  const HttpReply reply = Ask(server_->port(), "GET", "/");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, "This port speaks TLS, and the request came in plain text: use https://.");
  EXPECT_EQ(Refused().first, Refusal::kPlaintext);
}

TEST_F(HttpTlsTest, WhoIsNotBelievedIsRefused) {
  Start({}, true);
  const tls::TlsFiles valid = dir_.Make(authority_, "client", {});
  TlsConnection works(server_->port(), Client(valid));
  works.Send(RequestText("POST", "/", "x"));
  EXPECT_EQ(works.Body(), "x");

  const auto refused = [&](const tls::TlsFiles& files) {
    TlsConnection c(server_->port(), Client(files));
    c.Send(RequestText("POST", "/", "x"));
    EXPECT_THAT(c.Body(), HasSubstr("no answer"));
    EXPECT_FALSE(c.status().ok()) << "it is told";
  };
  refused({"", "", dir_.path("ca.crt")});
  EXPECT_EQ(Refused(0).first, Refusal::kNoCertificate);
  const tls::CertDir other;
  tls::TlsFiles stranger = other.Make(tls::TestAuthority("authority B"), "client", {});
  stranger.ca = valid.ca;
  refused(stranger);
  EXPECT_EQ(Refused(1).first, Refusal::kUnknownAuthority);
  EXPECT_THAT(Refused(1).second, HasSubstr("issued by \"authority B\""));
}

TEST_F(HttpTlsTest, AClientsCertificateThatHasExpiredIsRefused) {
  Start({}, true);
  const int64_t now = tls::WallSeconds();
  const tls::TlsFiles files = dir_.Make(authority_, "client", {}, -9, -2);
  auto identity = tls::Identity::Load(files, now - 5 * tls::kTestDay);
  ASSERT_TRUE(identity.ok()) << identity.status();
  auto context = tls::Context::ForClient(*identity, {{"localhost"}, "", {}});
  ASSERT_TRUE(context.ok());
  TlsConnection c(server_->port(), *context);
  c.Send(RequestText("GET", "/", ""));
  EXPECT_THAT(c.Body(), HasSubstr("no answer"));
  EXPECT_EQ(Refused().first, Refusal::kExpired);
  EXPECT_THAT(Refused().second, HasSubstr("expired at"));
}

TEST_F(HttpTlsTest, AnotherProtocolThanHttp11IsRefused) {
  Start();
  TlsConnection c(server_->port(), Client({"", "", dir_.path("ca.crt")}, {"h2"}));
  EXPECT_FALSE(c.Established());
  EXPECT_EQ(Refused().first, Refusal::kHandshake);
}

TEST_F(HttpTlsTest, AHandshakeThatIsNotDoneInTimeEndsTheConnection) {
  Start({.handshake_ms = 100});
  HttpConnection silent(server_->port()), begins(server_->port());
  begins.Send("\x16\x03\x01");
  EXPECT_EQ(silent.ReceiveAll(), "");
  EXPECT_EQ(begins.ReceiveAll(), "");
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(Refused(i).first, Refusal::kHandshake);
    EXPECT_THAT(Refused(i).second, HasSubstr("within 0.1 seconds"));
  }
}

// Two a loop: the oldest one gives way, and whoever finishes is let in, however many are slow.
TEST_F(HttpTlsTest, SlowHandshakesKeepNobodyOut) {
  Start({.handshake_ms = 60000, .handshakes = 4, .slow_ms = 0});
  std::vector<std::unique_ptr<HttpConnection>> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(server_->port()));
    slow.back()->Send("\x16\x03\x01");
  }
  auto c = Connect();
  c->Send(RequestText("POST", "/", "here"));
  EXPECT_EQ(c->Body(), "here");
  EXPECT_THAT(Refused(7).second, HasSubstr("others needed its place"));
  EXPECT_EQ(slow.front()->ReceiveAll(), "");
}

// Many who connect at once are no attack: none of them has had its time.
TEST_F(HttpTlsTest, ABurstOfClientsIsServed) {
  Start({.handshakes = 4, .slow_ms = 20000});
  std::vector<std::unique_ptr<TlsConnection>> all;
  for (int i = 0; i < 64; ++i) all.push_back(Connect());
  for (auto& one : all) one->Send(RequestText("POST", "/", "x"));
  for (auto& one : all) EXPECT_EQ(one->Body(), "x");
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(refused_.empty());
}

}  // namespace
}  // namespace baton::router
