// PromptIds: the token ids of a prompt. Whoever copies it shares the ids: a chat that comes again, the request, the
// bytes on their way to a worker. What is derived from the ids is shared with them and so computed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "common/prefix_hash.h"

namespace baton::router {

/// Keys of a prompt's units, in order (router/index/worker_prefixes.h); shared by what looks at them.
using UnitKeys = std::shared_ptr<const std::vector<uint64_t>>;

/// The ids never change. Several threads may use copies of one, as those of a shared_ptr.
class PromptIds {
 public:
  PromptIds() = default;
  PromptIds(std::vector<int32_t> ids);                                                     // NOLINT: as the vector
  PromptIds(std::initializer_list<int32_t> ids) : PromptIds(std::vector<int32_t>(ids)) {}  // NOLINT

  const std::vector<int32_t>& get() const;
  operator const std::vector<int32_t>&() const { return get(); }  // NOLINT: what reads ids takes a vector
  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const int32_t* data() const { return get().data(); }
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }
  int32_t operator[](size_t i) const { return get()[i]; }
  friend bool operator==(const PromptIds& a, const PromptIds& b) { return a.get() == b.get(); }

  /// The greatest id; a negative one counts as greater than all others. 0 where there is none.
  uint32_t greatest() const { return shared_ ? shared_->greatest : 0; }
  /// Keys of the whole units of the prompt in this scope.
  UnitKeys KeysIn(const PrefixScope& scope, const PrefixHasher& hasher) const;
  /// The ids in 16 bits each, made once; empty where one is greater. They live as long as the ids.
  std::span<const uint16_t> Short() const;
  /// Bytes that one shared prompt of so many ids takes, with all that is derived from them.
  static size_t BytesOf(size_t ids) {
    return sizeof(Shared) + ids * (sizeof(int32_t) + sizeof(uint16_t)) + ids / kUnitTokens * sizeof(uint64_t);
  }

 private:
  struct Derived;
  struct Shared {
    explicit Shared(std::vector<int32_t> ids);
    const std::vector<int32_t> ids;
    const uint32_t greatest;
    const std::unique_ptr<Derived> derived;
    ~Shared();
  };
  std::shared_ptr<const Shared> shared_;  // null: no ids
};

}  // namespace baton::router
