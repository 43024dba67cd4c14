// Connections that may say nothing for long.
#pragma once

namespace baton::net {

/// From now on the other host is asked for a sign of life whenever nothing has come for 10 s. So what stands between
/// the two, and forgets connections that are idle for minutes without a word to either, does not forget this one; and a
/// host that is gone is noticed within 30 s.
void KeepAlive(int socket);

}  // namespace baton::net
