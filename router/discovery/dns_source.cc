#include "router/discovery/dns_source.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/check.h"
#include "common/errno_text.h"
#include "common/net/address.h"
#include "common/status.h"
#include "router/discovery/dns_answers.h"
#include "router/discovery/dns_round.h"
#include "router/pausing_thread.h"

namespace baton::router {
namespace {

/// Hosts: more questions than a server's socket holds are lost, and their answers seconds late.
constexpr size_t kAskedAtOnce = 32;

class DnsSource final : public EndpointSource {
 public:
  /// `port` 0: by SRV.
  DnsSource(const std::string& text, std::string host, uint16_t port, DnsOptions options)
      : name_("--workers-dns " + text),
        host_(std::move(host)),
        port_(port),
        options_(std::move(options)),
        log_(name_),
        wake_(eventfd(0, EFD_CLOEXEC)) {
    BATON_CHECK(wake_ >= 0, ErrnoText());
  }
  ~DnsSource() override {
    thread_.Stop([this] {
      const uint64_t one = 1;
      (void)!write(wake_, &one, sizeof(one));
    });
    close(wake_);
  }

  const std::string& name() const override { return name_; }
  void Start(Tell tell) override {
    tell_ = std::move(tell);
    thread_.Start([this] { Run(); });
  }

 private:
  void Run() {
    while (Round() && thread_.Pause(options_.interval)) {
    }
  }

  /// False: stopped.
  bool Round() {
    auto round = DnsRound::Begin(options_.server);
    if (!round.ok()) {
      log_.Failed(round.status(), known_.size());
      return true;
    }
    if (port_ == 0) {
      (*round)->AskSrv(host_, [this](DnsAnswer answer) { answers_.Targets(answer); });
      if (!(*round)->Wait(wake_)) return false;
    } else {
      answers_.Targets({host_, port_});
    }
    struct Both {
      std::string host;
      DnsAnswer v4, v6;
    };
    std::vector<std::unique_ptr<Both>> hosts;
    for (const std::string& host : answers_.Hosts()) {
      Both& both = *hosts.emplace_back(std::make_unique<Both>(Both{host, {}, {}}));
      const std::string name = port_ == 0 ? host + "." : host;  // a target is whole: no search domain belongs to it
      (*round)->AskAddresses(name, AF_INET, [&both](DnsAnswer answer) { both.v4 = std::move(answer); });
      (*round)->AskAddresses(name, AF_INET6, [&both](DnsAnswer answer) { both.v6 = std::move(answer); });
      if (hosts.size() % kAskedAtOnce == 0 && !(*round)->Wait(wake_)) return false;
    }
    if (!(*round)->Wait(wake_)) return false;
    for (const auto& both : hosts) answers_.Addresses(both->host, both->v4, both->v6);
    Ended();
    return true;
  }

  void Ended() {
    std::vector<Endpoint> now = answers_.Endpoints();
    const absl::Status trouble = answers_.TakeTrouble();
    const bool changed = now != known_;
    known_ = std::move(now);
    if (trouble.ok())
      log_.Knows(known_.size());
    else
      log_.Failed(trouble, known_.size());
    if (changed) tell_(known_);
  }

  const std::string name_, host_;
  const uint16_t port_;
  const DnsOptions options_;
  Tell tell_;
  SourceLog log_;
  DnsAnswers answers_;
  std::vector<Endpoint> known_;
  const int wake_;
  PausingThread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EndpointSource>> MakeDnsSource(const std::string& name, const DnsOptions& options) {
  const auto bad = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(StrCat("--workers-dns ", name, ": ", why.message()));
  };
  if (!options.server.empty()) {
    const auto server = net::ParseHostPort(options.server);
    if (!server.ok() || !net::IsIpAddress(server->host))
      return absl::InvalidArgumentError(StrCat("--dns-server ", options.server, ": IP:PORT is expected"));
  }
  if (name.find(':') == std::string::npos) {
    if (const absl::Status host = net::CheckHost(name); !host.ok()) return bad(host);
    return std::make_unique<DnsSource>(name, name, uint16_t{0}, options);
  }
  const auto place = net::ParseHostPort(name);
  if (!place.ok()) return bad(place.status());
  return std::make_unique<DnsSource>(name, place->host, place->port, options);
}

}  // namespace baton::router
