#include "transport_contract.h"

namespace baton {
std::vector<Backend> UcxBackends() { return {}; }
}  // namespace baton
