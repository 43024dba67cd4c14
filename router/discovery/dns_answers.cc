#include "router/discovery/dns_answers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr size_t kMostOfAHost = 1024, kMostEndpoints = 16384;

}  // namespace

void DnsAnswers::Trouble(const absl::Status& status) {
  if (trouble_.ok()) trouble_ = status;
}

void DnsAnswers::Targets(const DnsAnswer& srv) {
  if (!srv.status.ok() || srv.targets.empty())
    return Trouble(srv.status.ok() ? absl::NotFoundError("the answer has no SRV record") : srv.status);
  std::vector<DnsTarget> there = srv.targets;
  std::erase_if(there, [](const DnsTarget& one) { return one.host.empty() || one.host == "." || one.port == 0; });
  if (there.empty())
    return Trouble(
        absl::NotFoundError("the answer says that there is no such service: its targets are \".\" or port 0"));
  targets_ = std::move(there);
  std::ranges::sort(targets_);
  targets_.erase(std::unique(targets_.begin(), targets_.end()), targets_.end());
}

std::vector<std::string> DnsAnswers::Hosts() const {
  std::vector<std::string> hosts;
  for (const DnsTarget& target : targets_) {
    if (hosts.empty() || hosts.back() != target.host) hosts.push_back(target.host);
  }
  return hosts;
}

void DnsAnswers::Addresses(const std::string& host, const DnsAnswer& v4, const DnsAnswer& v6) {
  Known& known = known_[host];
  const bool some = (v4.status.ok() && !v4.addresses.empty()) || (v6.status.ok() && !v6.addresses.empty());
  const auto take = [&](const DnsAnswer& answer, std::vector<std::string>& to) {
    const bool none = absl::IsNotFound(answer.status) || (answer.status.ok() && answer.addresses.empty());
    if (answer.addresses.size() > kMostOfAHost) {
      Trouble(absl::ResourceExhaustedError(
          StrCat(host, " has ", answer.addresses.size(), " addresses, at most ", kMostOfAHost)));
    } else if (answer.status.ok() && !answer.addresses.empty()) {
      to = answer.addresses;
      std::ranges::sort(to);
    } else if (none && some) {
      to.clear();
    } else if (!none) {
      Trouble(answer.status);
    }
  };
  take(v4, known.v4);
  take(v6, known.v6);
  if (!some) Trouble(v4.status.ok() ? absl::NotFoundError(StrCat(host, " has no address")) : v4.status);
}

std::vector<Endpoint> DnsAnswers::Endpoints() {
  std::set<std::string> hosts, seen;
  for (const DnsTarget& target : targets_) hosts.insert(target.host);
  std::erase_if(known_, [&](const auto& entry) { return !hosts.contains(entry.first); });
  std::vector<Endpoint> out;
  for (const DnsTarget& target : targets_) {
    const Known& known = known_[target.host];
    for (const auto* family : {&known.v4, &known.v6}) {
      for (const std::string& address : *family) {
        std::string text = net::JoinHostPort(address, target.port);
        if (!seen.insert(text).second) continue;
        if (out.size() == kMostEndpoints) {
          Trouble(absl::ResourceExhaustedError(StrCat("more than ", kMostEndpoints, " addresses with their ports")));
          return out;
        }
        out.push_back({std::move(text)});
      }
    }
  }
  return out;
}

}  // namespace baton::router
