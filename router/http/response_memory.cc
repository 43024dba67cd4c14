#include "router/http/response_memory.h"

#include <utility>

namespace baton::router {
namespace {

constexpr size_t kBookkeeping = 256;  // bytes of an entry beside its texts

}  // namespace

void ResponseMemory::Keep(const std::string& owner, const std::string& id, std::string messages) {
  const size_t size = 2 * id.size() + messages.size() + kBookkeeping;
  const std::lock_guard lock(mutex_);
  Book& book = books_[owner];
  if (size > capacity_bytes_ || !book.kept.emplace(id, std::move(messages)).second) return;
  book.order.push_back(id);
  book.bytes += size;
  while (book.bytes > capacity_bytes_) {
    const auto oldest = book.kept.find(book.order.front());
    book.bytes -= 2 * oldest->first.size() + oldest->second.size() + kBookkeeping;
    book.kept.erase(oldest);
    book.order.pop_front();
  }
}

std::optional<std::string> ResponseMemory::Find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto book = books_.find(owner);
  if (book == books_.end()) return std::nullopt;
  const auto found = book->second.kept.find(id);
  if (found == book->second.kept.end()) return std::nullopt;
  return found->second;
}

size_t ResponseMemory::BytesOf(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto book = books_.find(owner);
  return book == books_.end() ? 0 : book->second.bytes;
}

}  // namespace baton::router
