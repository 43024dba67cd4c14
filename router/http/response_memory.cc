#include "router/http/response_memory.h"

#include <utility>

namespace baton::router {
namespace {

constexpr size_t kBookkeeping = 256;  // bytes of an entry beside its texts

}  // namespace

void ResponseMemory::Keep(const std::string& owner, const std::string& id, std::string messages) {
  std::string key = Key(owner, id);
  const size_t size = 2 * key.size() + messages.size() + kBookkeeping;
  const std::lock_guard lock(mutex_);
  if (size > capacity_bytes_ || !kept_.emplace(key, std::move(messages)).second) return;
  order_.push_back(std::move(key));
  bytes_ += size;
  while (bytes_ > capacity_bytes_) {
    const auto oldest = kept_.find(order_.front());
    bytes_ -= 2 * oldest->first.size() + oldest->second.size() + kBookkeeping;
    kept_.erase(oldest);
    order_.pop_front();
  }
}

std::optional<std::string> ResponseMemory::Find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(Key(owner, id));
  if (found == kept_.end()) return std::nullopt;
  return found->second;
}

size_t ResponseMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace baton::router
