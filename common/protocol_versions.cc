#include "common/protocol_versions.h"

namespace baton {

ProtocolVersions WorkerProtocol() { return {1, 1}; }
ProtocolVersions KvProtocol() { return {4, 4}; }

}  // namespace baton
