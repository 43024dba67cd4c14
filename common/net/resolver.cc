#include "common/net/resolver.h"

#include <thread>
#include <utility>

#include "common/str_cat.h"

namespace baton::net {

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
