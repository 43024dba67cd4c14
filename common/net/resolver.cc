#include "common/net/resolver.h"

#include <thread>
#include <utility>

#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::net {

std::optional<std::vector<SocketAddress>> KnownAddresses(const std::string& host, uint16_t port) {
  const auto v4 = SocketAddress::Of(host, port);
  if (!v4.ok()) return std::nullopt;
  if (IsIpAddress(host)) return std::vector{*v4};
  return std::vector{*v4, SocketAddress::Of("::1", port).value()};
}

Resolver::~Resolver() {
  std::lock_guard lock(life_->mutex);
  life_->over = true;
}

void Resolver::Resolve(std::string host, uint16_t port, Done done) {
  if (life_->open.fetch_add(1) >= kMostAtOnce) {
    --life_->open;
    return done(absl::ResourceExhaustedError(
        StrCat("\"", host, "\" is not resolved: ", kMostAtOnce, " names are being asked for already")));
  }
  std::thread([life = life_, host = std::move(host), port, done = std::move(done)] {
    auto found = net::Resolve(host, port);
    std::lock_guard lock(life->mutex);
    if (!life->over) done(std::move(found));
    --life->open;
  }).detach();
}

}  // namespace baton::net
