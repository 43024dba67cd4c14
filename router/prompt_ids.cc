#include "router/prompt_ids.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

namespace baton::router {
namespace {

// In blocks of a fixed length, of which the compiler makes vectors.
uint32_t GreatestId(std::span<const int32_t> ids) {
  constexpr size_t kBlock = 64;
  std::array<uint32_t, kBlock> greatest{};
  for (; ids.size() >= kBlock; ids = ids.subspan(kBlock)) {
    const int32_t* block = ids.data();
    for (size_t i = 0; i < kBlock; ++i) {
      const auto id = static_cast<uint32_t>(block[i]);
      greatest[i] = greatest[i] < id ? id : greatest[i];
    }
  }
  for (const int32_t id : ids) greatest[0] = std::max(greatest[0], static_cast<uint32_t>(id));
  return *std::ranges::max_element(greatest);
}

}  // namespace

// What was asked for before. The keys are those of one scope, which is almost always the only one.
struct PromptIds::Derived {
  std::mutex mutex;
  PrefixHash root{};
  UnitKeys keys;                 // null: never asked for
  std::vector<uint16_t> shorts;  // empty: likewise, and never changed afterwards
};

PromptIds::Shared::Shared(std::vector<int32_t> given)
    : ids(std::move(given)), greatest(GreatestId(ids)), derived(std::make_unique<Derived>()) {}
PromptIds::Shared::~Shared() = default;

PromptIds::PromptIds(std::vector<int32_t> ids)
    : shared_(ids.empty() ? nullptr : std::make_shared<const Shared>(std::move(ids))) {}

const std::vector<int32_t>& PromptIds::get() const {
  static const std::vector<int32_t> none;
  return shared_ ? shared_->ids : none;
}

// The root is a keyed hash of the scope, and every key follows from it and the ids.
UnitKeys PromptIds::KeysIn(const PrefixScope& scope, const PrefixHasher& hasher) const {
  const PrefixHash root = hasher.Root(scope);
  if (shared_) {
    std::lock_guard lock(shared_->derived->mutex);
    if (shared_->derived->keys && shared_->derived->root == root) return shared_->derived->keys;
  }
  std::vector<uint64_t> keys;
  keys.reserve(size() / kUnitTokens);
  hasher.Walk(root, get(), [&keys](const PrefixHash& hash) { keys.push_back(hash.lo); });
  auto out = std::make_shared<const std::vector<uint64_t>>(std::move(keys));
  if (shared_) {
    std::lock_guard lock(shared_->derived->mutex);
    shared_->derived->root = root;
    shared_->derived->keys = out;
  }
  return out;
}

std::span<const uint16_t> PromptIds::Short() const {
  if (!shared_ || shared_->greatest > std::numeric_limits<uint16_t>::max()) return {};
  std::vector<uint16_t>& shorts = shared_->derived->shorts;
  std::lock_guard lock(shared_->derived->mutex);
  if (shorts.empty()) {
    shorts.resize(size());
    std::ranges::transform(*this, shorts.begin(), [](int32_t id) { return static_cast<uint16_t>(id); });
  }
  return shorts;
}

}  // namespace baton::router
