#include "router/discovery/dns_round.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/net/socket_address.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr int kTimeoutMs = 1000, kTries = 2;

absl::Status StatusOf(int ares, const std::string& what) {
  const std::string message = StrCat(what, ": ", ares_strerror(ares));
  if (ares == ARES_SUCCESS) return absl::OkStatus();
  if (ares == ARES_ENODATA || ares == ARES_ENOTFOUND) return absl::NotFoundError(message);
  if (ares == ARES_ECANCELLED || ares == ARES_EDESTRUCTION) return absl::CancelledError(message);
  return absl::UnavailableError(message);
}

struct Question {
  std::string what;
  DnsRound::Done done;
  int* open;  ///< questions of the round

  void Answered(DnsAnswer answer) {
    --*open;
    done(std::move(answer));
  }
};

void OnSrv(void* arg, int status, int /*timeouts*/, unsigned char* data, int bytes) {
  const std::unique_ptr<Question> question(static_cast<Question*>(arg));
  ares_srv_reply* records = nullptr;
  if (status == ARES_SUCCESS) status = ares_parse_srv_reply(data, bytes, &records);
  DnsAnswer answer{StatusOf(status, question->what), {}, {}};
  for (const ares_srv_reply* one = records; one != nullptr; one = one->next)
    answer.targets.push_back({one->host, one->port});
  if (records != nullptr) ares_free_data(records);
  question->Answered(std::move(answer));
}

void OnAddresses(void* arg, int status, int /*timeouts*/, ares_addrinfo* found) {
  const std::unique_ptr<Question> question(static_cast<Question*>(arg));
  DnsAnswer answer{StatusOf(status, question->what), {}, {}};
  for (const ares_addrinfo_node* one = found == nullptr ? nullptr : found->nodes; one != nullptr; one = one->ai_next)
    answer.addresses.push_back(net::SocketAddress(one->ai_addr, one->ai_addrlen).host());
  if (found != nullptr) ares_freeaddrinfo(found);
  question->Answered(std::move(answer));
}

}  // namespace

struct DnsRound::Channel {
  ares_channel channel = nullptr;
  int open = 0;
};

absl::StatusOr<std::unique_ptr<DnsRound>> DnsRound::Begin(const std::string& server) {
  static const int library = ares_library_init(ARES_LIB_INIT_ALL);
  auto made = std::make_unique<Channel>();
  ares_options options{};
  options.timeout = kTimeoutMs;
  options.tries = kTries;
  int status = library;
  if (status == ARES_SUCCESS) status = ares_init_options(&made->channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
  if (status == ARES_SUCCESS && !server.empty()) status = ares_set_servers_ports_csv(made->channel, server.c_str());
  std::unique_ptr<DnsRound> round(new DnsRound(std::move(made)));
  if (status != ARES_SUCCESS) return absl::UnavailableError(StrCat("no resolver: ", ares_strerror(status)));
  return round;
}

DnsRound::DnsRound(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}
DnsRound::~DnsRound() {
  if (channel_->channel != nullptr) ares_destroy(channel_->channel);
}

void DnsRound::AskSrv(const std::string& name, Done done) {
  ++channel_->open;
  auto question = std::make_unique<Question>(StrCat("SRV of ", name), std::move(done), &channel_->open);
  ares_search(channel_->channel, name.c_str(), ns_c_in, ns_t_srv, OnSrv, question.release());
}

void DnsRound::AskAddresses(const std::string& host, int family, Done done) {
  ++channel_->open;
  auto question = std::make_unique<Question>(StrCat(family == AF_INET ? "A of " : "AAAA of ", host), std::move(done),
                                             &channel_->open);
  ares_addrinfo_hints hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  ares_getaddrinfo(channel_->channel, host.c_str(), nullptr, &hints, OnAddresses, question.release());
}

bool DnsRound::Wait(int stop_fd) {
  while (channel_->open > 0) {
    ares_socket_t sockets[ARES_GETSOCK_MAXNUM];
    const int wanted = ares_getsock(channel_->channel, sockets, ARES_GETSOCK_MAXNUM);
    pollfd ready[ARES_GETSOCK_MAXNUM + 1] = {{stop_fd, POLLIN, 0}};
    nfds_t count = 1;
    for (int i = 0; i < ARES_GETSOCK_MAXNUM; ++i) {
      const bool reads = ARES_GETSOCK_READABLE(wanted, i) != 0, writes = ARES_GETSOCK_WRITABLE(wanted, i) != 0;
      if (!reads && !writes) continue;
      ready[count++] = {sockets[i], static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0};
    }
    timeval most{1, 0}, next{};
    const timeval* wait = ares_timeout(channel_->channel, &most, &next);
    poll(ready, count, static_cast<int>(wait->tv_sec * 1000 + wait->tv_usec / 1000 + 1));
    if (ready[0].revents != 0) {
      ares_cancel(channel_->channel);
      return false;
    }
    bool some = false;
    for (nfds_t i = 1; i < count; ++i) {
      if (ready[i].revents == 0) continue;
      const bool reads = (ready[i].revents & (POLLIN | POLLERR | POLLHUP)) != 0;
      ares_process_fd(channel_->channel, reads ? ready[i].fd : ARES_SOCKET_BAD,
                      (ready[i].revents & POLLOUT) != 0 ? ready[i].fd : ARES_SOCKET_BAD);
      some = true;
    }
    if (!some) ares_process_fd(channel_->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // timeouts
  }
  return true;
}

}  // namespace baton::router
