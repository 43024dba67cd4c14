#include "common/grpc/channelz.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

namespace baton::net {
namespace {

/// gRPC numbers a socket a little before it shows it: the latest ones are asked for again.
constexpr int64_t kAgain = 64;

struct Free {
  void operator()(char* text) const { gpr_free(text); }
};
using Text = std::unique_ptr<char, Free>;  ///< JSON as gRPC writes it: without spaces, numbers of 64 bits as text

std::string_view Of(const Text& text) { return text == nullptr ? std::string_view() : text.get(); }

/// The text behind `key` up to the next quotation mark, from `at` on, which is behind that then. Empty: there is none.
std::string_view Next(std::string_view json, std::string_view key, size_t& at) {
  const size_t found = json.find(key, at);
  at = found == json.npos ? json.size() : found + key.size();
  const size_t end = std::min(json.find('"', at), json.size());
  const std::string_view value = json.substr(at, end - at);
  at = end;
  return value;
}

int64_t Number(std::string_view text) {
  int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

int64_t NumberAt(std::string_view json, std::string_view key) {
  size_t at = 0;
  return Number(Next(json, key, at));
}

}  // namespace

std::vector<GrpcSockets::Socket> GrpcSockets::New() {
  std::vector<Socket> out;
  const Text servers(grpc_channelz_get_servers(0));
  for (size_t at = 0; at < Of(servers).size();) {
    const int64_t server = Number(Next(Of(servers), "\"serverId\":\"", at));
    if (server == 0) break;
    int64_t& next = next_[server];
    int64_t from = std::max<int64_t>(0, next - kAgain);
    for (bool end = false; !end;) {
      const Text sockets(grpc_channelz_get_server_sockets(server, from, 0));
      const std::string_view json = Of(sockets);
      end = json.find("\"end\":true") != json.npos;
      const size_t known = out.size();
      for (size_t place = 0; place < json.size();) {
        const std::string_view name = Next(json, "\"name\":\"", place);
        const int64_t id = Number(Next(json, "\"socketId\":\"", place));
        if (id == 0) break;
        out.push_back({id, std::string(name.substr(std::min(name.size(), name.find(' ') + 1)))});
        from = id + 1;
      }
      next = std::max(next, from);
      end |= out.size() == known;
    }
  }
  return out;
}

std::optional<int64_t> OpenCallsOf(int64_t socket_id) {
  const Text socket(grpc_channelz_get_socket(socket_id));
  if (socket == nullptr) return std::nullopt;
  const std::string_view json = Of(socket);
  return NumberAt(json, "\"streamsStarted\":\"") - NumberAt(json, "\"streamsSucceeded\":\"") -
         NumberAt(json, "\"streamsFailed\":\"");
}

}  // namespace baton::net
