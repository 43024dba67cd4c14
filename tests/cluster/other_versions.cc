// What makes a `baton` of this source a build of another release: it speaks the protocol versions that the environment
// says. Only the tests link it, in the place of common/protocol_versions.cc; `baton` itself reads no such variable.
#include <cstdio>
#include <cstdlib>

#include "common/check.h"
#include "common/protocol_versions.h"

namespace baton {
namespace {

ProtocolVersions FromEnvironment(const char* name) {
  ProtocolVersions versions;
  const char* text = std::getenv(name);
  BATON_CHECK(text != nullptr && std::sscanf(text, "%u..%u", &versions.min, &versions.max) == 2, name,
              " is not like 1..2");
  return versions;
}

}  // namespace

ProtocolVersions WorkerProtocol() { return FromEnvironment("BATON_TEST_WORKER_PROTOCOL"); }
ProtocolVersions KvProtocol() { return FromEnvironment("BATON_TEST_KV_PROTOCOL"); }

}  // namespace baton
