#include "router/http/response_memory.h"

#include <algorithm>
#include <utility>

namespace baton::router {
namespace {

size_t SizeOf(const std::string& id, const ResponseMemory::Kept& kept) {
  constexpr size_t kBookkeeping = 256;  // bytes of an entry beside its texts
  return 2 * id.size() + kept.messages.size() + kept.answer.size() + kept.input.size() + kBookkeeping;
}

}  // namespace

void ResponseMemory::Drop(Book& book, std::unordered_map<std::string, Kept>::iterator one) {
  const size_t size = SizeOf(one->first, one->second);
  book.bytes -= size;
  bytes_ -= size;
  book.kept.erase(one);
}

void ResponseMemory::DropOldest(Book& book) {
  Drop(book, book.kept.find(book.order.front()));
  book.order.pop_front();
}

void ResponseMemory::Keep(const std::string& owner, const std::string& id, Kept kept) {
  const size_t size = SizeOf(id, kept);
  const std::lock_guard lock(mutex_);
  Book& book = books_[owner];
  if (size > capacity_bytes_ || !book.kept.emplace(id, std::move(kept)).second) return;
  book.order.push_back(id);
  book.bytes += size;
  bytes_ += size;
  while (book.bytes > capacity_bytes_) DropOldest(book);
  const auto before = [&](const auto& one) { return one.second.bytes - (&one.second == &book ? size : 0); };
  while (bytes_ > all_bytes_) DropOldest(std::ranges::max_element(books_, {}, before)->second);
}

std::optional<ResponseMemory::Kept> ResponseMemory::Find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto book = books_.find(owner);
  if (book == books_.end()) return std::nullopt;
  const auto found = book->second.kept.find(id);
  if (found == book->second.kept.end()) return std::nullopt;
  return found->second;
}

bool ResponseMemory::Forget(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto book = books_.find(owner);
  if (book == books_.end()) return false;
  const auto found = book->second.kept.find(id);
  if (found == book->second.kept.end()) return false;
  Drop(book->second, found);
  std::erase(book->second.order, id);
  return true;
}

size_t ResponseMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t ResponseMemory::BytesOf(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto book = books_.find(owner);
  return book == books_.end() ? 0 : book->second.bytes;
}

}  // namespace baton::router
