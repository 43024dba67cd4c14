#include "common/net/resolver.h"

#include <thread>
#include <utility>

namespace baton::net {

Resolver::~Resolver() {
  std::lock_guard lock(life_->mutex);
  life_->over = true;
}

void Resolver::Resolve(std::string host, uint16_t port, Done done) {
  std::thread([life = life_, host = std::move(host), port, done = std::move(done)] {
    auto found = net::Resolve(host, port);
    std::lock_guard lock(life->mutex);
    if (!life->over) done(std::move(found));
  }).detach();
}

}  // namespace baton::net
