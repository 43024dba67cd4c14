// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "load/client.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "common/foreign_text.h"
#include "common/http/http_connection.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"
#include "load/answer_reader.h"

namespace baton::load {
namespace asio = boost::asio;
using Error = HttpConnection::Error;

namespace {

constexpr size_t kMostErrorBytes = 4096, kMostAnswerBytes = 64 << 20;
constexpr Duration kAfterEnd = std::chrono::seconds(1);  ///< of an answer, for the end of its body

Failure KindOf(const Error& error, Failure otherwise) {
  return HttpConnection::IsTimeout(error) ? Failure::kTimeout : otherwise;
}

std::string TextOrJson(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// One answer's body: an event stream, or the reason why there is none.
class Body {
 public:
  /// `stream`: whether it is one of events; nullopt: its first bytes tell, as servers name it in many ways. `moved_to`:
  /// another place, which is not followed: it would be part of every figure. Empty: none is named.
  Body(Outcome& outcome, std::optional<bool> stream, std::string_view moved_to)
      : outcome_(outcome), stream_(stream), moved_to_(moved_to) {}

  /// False: there is too much of it, and no more is wanted.
  bool Feed(std::string_view bytes, Duration now) {
    std::string so_far;
    if (!stream_) {
      so_far = StrCat(std::exchange(other_, {}), bytes);
      bytes = so_far;
      stream_ = BeginsAsEvents(bytes);
    }
    if (!stream_.value_or(false)) {
      other_.append(bytes.substr(0, kMostErrorBytes - std::min(kMostErrorBytes, other_.size())));
      return true;
    }
    const bool fits = events_.Feed(bytes, [&](std::string_view data) { Take(data, now); });
    if (!fits) Fail(outcome_, Failure::kMalformed, "an event without end");
    const bool ends = outcome_.answer.text.size() <= kMostAnswerBytes;
    if (!ends) Fail(outcome_, Failure::kMalformed, StrCat("an answer of more than ", kMostAnswerBytes, " bytes"));
    return fits && ends;
  }

  /// The body has ended as HTTP wants it to.
  void End(Duration now) {
    if (stream_.value_or(false)) {
      events_.Finish([&](std::string_view data) {  // half an event is what broke off, and no other one
        if (data == "[DONE]" || ShallowJson(data).is_object()) Take(data, now);
      });
    }
    if (outcome_.http_status != 200) {
      outcome_.unavailable = outcome_.http_status == 503;
      Fail(outcome_, Failure::kRefused, StrCat("HTTP ", outcome_.http_status, ": ", Reason()));
    } else if (!stream_.value_or(false)) {
      const nlohmann::json body = ShallowJson(other_);
      const bool error = body.is_object() && body.contains("error") && !body["error"].is_null();
      Fail(outcome_, error ? Failure::kError : Failure::kMalformed,
           error ? Reason() : StrCat("not an event stream: ", Printable(other_, 200)));
    } else if (!outcome_.answer.error.empty()) {
      Fail(outcome_, Failure::kError, Printable(outcome_.answer.error, 300));
    } else if (!outcome_.answer.finished && !outcome_.answer.done) {
      Fail(outcome_, Failure::kBroken, "the stream ended without an end of the answer");
    } else if (outcome_.arrivals.empty()) {
      Fail(outcome_, Failure::kMalformed, "an answer without a token");
    }
  }

 private:
  void Take(std::string_view data, Duration now) {
    const Event event = Apply(data, outcome_.answer);
    if (event == Event::kText) outcome_.arrivals.push_back(now);
    if (event == Event::kMalformed)
      Fail(outcome_, Failure::kMalformed, StrCat("an event is not JSON: ", Printable(data, 80)));
  }

  std::string Reason() const {
    if (!moved_to_.empty()) return StrCat("it is at ", Printable(moved_to_, 200));
    const nlohmann::json body = ShallowJson(other_);
    if (body.is_object() && body.contains("error") && body["error"].is_object() && body["error"].contains("message"))
      return Printable(TextOrJson(body["error"]["message"]), 300);
    return Printable(other_, 200);
  }

  Outcome& outcome_;
  std::optional<bool> stream_;
  const std::string moved_to_;
  EventLines events_;
  std::string other_;
};

}  // namespace

void Fail(Outcome& outcome, Failure failure, std::string error) {
  if (!outcome.ok()) return;
  outcome.failure = failure;
  outcome.error = std::move(error);
}

struct Client::Turn {
  std::unique_ptr<HttpConnection> connection;
  const std::string& request;
  Outcome& outcome;
  TimePoint deadline;
  bool first_use;
};

Client::Client(const Server& server, const RequestBody& body, const Clock& clock)
    : server_(server), body_(body), clock_(clock) {}
Client::~Client() = default;

struct Client::Lookup {
  asio::steady_timer over;  ///< cancelled then
  absl::Status status;
};

asio::awaitable<absl::Status> Client::FindAddresses(TimePoint deadline) {
  if (!addresses_.empty()) co_return absl::OkStatus();
  const auto executor = co_await asio::this_coro::executor;
  const bool asks = lookup_ == nullptr;
  if (asks) lookup_ = std::make_shared<Lookup>(Lookup{asio::steady_timer(executor, TimePoint::max()), {}});
  const std::shared_ptr<Lookup> lookup = lookup_;
  if (!asks) {
    Error over;
    co_await lookup->over.async_wait(asio::redirect_error(asio::use_awaitable, over));
    co_return lookup->status;
  }
  auto found = co_await HttpConnection::Resolve(server_.host, server_.port, deadline - clock_.Now());
  lookup->status = found.status();
  if (found.ok()) addresses_ = *std::move(found);
  lookup->over.cancel();
  lookup_ = nullptr;
  co_return lookup->status;
}

asio::awaitable<std::unique_ptr<HttpConnection>> Client::Connect(Outcome& outcome, TimePoint deadline) {
  Error error;
  if (const absl::Status found = co_await FindAddresses(deadline); !found.ok()) {
    Fail(outcome, absl::IsDeadlineExceeded(found) ? Failure::kTimeout : Failure::kConnect,
         std::string(found.message()));
    co_return nullptr;
  }
  auto connection = std::make_unique<HttpConnection>(co_await asio::this_coro::executor);
  connection->ExpireAfter(deadline - clock_.Now());
  co_await connection->Connect(addresses_, error);
  if (error) {
    Fail(outcome, KindOf(error, Failure::kConnect), StrCat("connecting: ", error.message()));
    co_return nullptr;
  }
  connection->socket().set_option(asio::ip::tcp::no_delay(true), error);
  error = {};
  if (server_.tls) co_await connection->StartTls(*server_.tls, server_.host, error);
  if (error) {
    Fail(outcome, KindOf(error, Failure::kConnect), StrCat("TLS: ", error.message()));
    co_return nullptr;
  }
  ++connections_;
  co_return connection;
}

// False: a kept connection was closed before a byte of the answer came, and a fresh one may be asked.
asio::awaitable<bool> Client::Exchange(Turn& turn) {
  Outcome& outcome = turn.outcome;
  HttpConnection& connection = *turn.connection;
  Error error;
  co_await connection.Ask(turn.request, error);
  if (error) {
    if (!turn.first_use && !HttpConnection::IsTimeout(error) && connection.silent()) co_return false;
    Fail(outcome, KindOf(error, Failure::kBroken), StrCat("no answer: ", error.message()));
    co_return true;
  }
  outcome.http_status = connection.status();
  const std::string_view encoding = connection.header("Content-Encoding");
  if (outcome.http_status == 200 && !encoding.empty() && !absl::EqualsIgnoreCase(AbslView(encoding), "identity"))
    Fail(outcome, Failure::kMalformed,
         StrCat("the answer is encoded, which nobody asked for: ", Printable(encoding, 80)));
  const bool named = IsEventStream(connection.header("Content-Type"));
  Body body(outcome,
            outcome.http_status != 200 ? std::optional(false)
            : named                    ? std::optional(true)
                                       : std::nullopt,
            outcome.http_status / 100 == 3 ? connection.header("Location") : "");
  while (!connection.ended()) {
    const std::string_view piece = co_await connection.Read(error);
    const Duration now = Since();
    if (!body.Feed(piece, now)) co_return true;
    if (error && outcome.answer.done) break;  // of its body there was nothing more to come
    if (error) {
      Fail(outcome, KindOf(error, Failure::kBroken), StrCat("in the middle of the answer: ", error.message()));
      co_return true;
    }
    if (!outcome.answer.done || outcome.end != Duration{}) continue;
    outcome.end = now;
    connection.ExpireAfter(std::min(kAfterEnd, turn.deadline - clock_.Now()));
  }
  if (!error) outcome.end = Since();
  body.End(outcome.end);
  if (error) co_return true;
  if (connection.keeps() && idle_.size() < 65536) idle_.push_back(std::move(turn.connection));
  co_return true;
}

/// A field of `--header` stands in the place of one of ours.
std::string Client::RequestOf(const Prompt& prompt, size_t index, std::string_view request_id) const {
  const std::string body = body_.Of(prompt, index);
  const bool v6 = server_.host.find(':') != std::string::npos;
  std::vector<std::pair<std::string_view, std::string>> fields = {
      {"Host", StrCat(v6 ? "[" : "", server_.host, v6 ? "]:" : ":", server_.port)},
      {"User-Agent", "baton"},
      {"Content-Type", "application/json"},
      {"X-Request-Id", std::string(request_id)}};
  const auto set = [&fields](std::string_view name, std::string value) {
    std::erase_if(fields,
                  [name](const auto& field) { return absl::EqualsIgnoreCase(AbslView(field.first), AbslView(name)); });
    fields.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : server_.headers) set(name, value);
  set("Content-Length", StrCat(body.size()));
  std::string request = StrCat("POST ", server_.path, " HTTP/1.1\r\n");
  for (const auto& [name, value] : fields) request += StrCat(name, ": ", value, "\r\n");
  return StrCat(request, "\r\n", body);
}

asio::awaitable<void> Client::Ask(const Prompt& prompt, size_t index, std::string request_id, Outcome& outcome) {
  const TimePoint deadline = std::min(clock_.Now() + server_.timeout, until_);
  const std::string request = RequestOf(prompt, index, request_id);
  outcome.sent = Since();
  for (bool again = true; again;) {
    Turn turn{nullptr, request, outcome, deadline, idle_.empty()};
    if (turn.first_use) {
      turn.connection = co_await Connect(outcome, deadline);
    } else {
      turn.connection = std::move(idle_.back());
      idle_.pop_back();
    }
    again = false;
    if (turn.connection != nullptr) {
      turn.connection->ExpireAfter(deadline - clock_.Now());
      again = !co_await Exchange(turn);
    }
  }
  if (!outcome.ok() || outcome.end == Duration{}) outcome.end = Since();
}

MakeAsker HttpAsker(Server server, RequestBody body) {
  // Both live as long as the function, of which the run has a copy.
  auto kept = std::make_shared<std::pair<const Server, const RequestBody>>(std::move(server), std::move(body));
  return [kept](const Clock& clock) { return std::make_unique<Client>(kept->first, kept->second, clock); };
}

}  // namespace baton::load
