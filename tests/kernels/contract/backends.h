// The implementations of Ops that the contract is run over.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/ops.h"

namespace baton::kernels {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Ops>(DType kv)> make;  ///< null: no planes of this type
  DType compute = DType::kF32;
  bool slow = false;  ///< an emulated device: smaller cases
};
inline void PrintTo(const Backend& b, std::ostream* out) { *out << b.name; }

/// Every backend this machine can run; the first of a device and compute type is the one that the others of both must
/// equal bit for bit.
std::vector<Backend> Backends();

/// The backend that `b` must equal bit for bit.
inline Backend ReferenceOf(const Backend& b) {
  for (Backend& other : Backends())
    if (other.compute == b.compute && other.slow == b.slow) return other;
  BATON_CHECK(false, b.name);
}

}  // namespace baton::kernels
