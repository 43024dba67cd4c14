#include "cli/tools/listener_process.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";  // of /proc/net/tcp, see proc(5)

// Whether an address is this machine's: a socket can be bound to it.
bool IsHere(const std::string& host) {
  addrinfo wish{};
  wish.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "0", &wish, &found) != 0) return false;
  bool here = false;
  for (const addrinfo* one = found; one != nullptr && !here; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_DGRAM, 0);
    here = fd >= 0 && bind(fd, one->ai_addr, one->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return here;
}

// The inodes of the sockets that listen on a port, whatever their address.
std::set<std::string> Listeners(int port) {
  std::set<std::string> out;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      int here = 0;
      if (words.size() < 10 || words[3] != kListening) continue;
      const std::string hex = words[1].substr(words[1].rfind(':') + 1);
      if (absl::SimpleHexAtoi(hex, &here) && here == port) out.insert(StrCat("socket:[", words[9], "]"));
    }
  }
  return out;
}

bool Holds(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (auto fd = fs::directory_iterator(process / "fd", error); !error && fd != fs::directory_iterator();
       fd.increment(error)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(fd->path(), gone).string())) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<int> ListenerProcess(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const net::HostPort at, net::ParseHostPort(address));
  if (!IsHere(at.host))
    return absl::FailedPreconditionError(StrCat(address, " is not this machine's: --at can run what ends it there"));
  const std::set<std::string> sockets = Listeners(at.port);
  std::error_code error;
  for (auto process = fs::directory_iterator("/proc", error);
       !sockets.empty() && !error && process != fs::directory_iterator(); process.increment(error)) {
    int pid = 0;
    if (absl::SimpleAtoi(process->path().filename().string(), &pid) && Holds(process->path(), sockets)) return pid;
  }
  return absl::FailedPreconditionError(
      StrCat(address, ": no process of this machine that we may look at listens there"));
}

}  // namespace baton::cli
