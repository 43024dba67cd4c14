#include "router/fleet/watch_codec.h"

#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>

#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "proto/protocol_codec.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

void TakeKeys(const std::string& hashes, WatchEvent& out) {
  out.keys.resize(hashes.size() / 16);
  out.stray_bytes = hashes.size() % 16;
  for (size_t i = 0; i < out.keys.size(); ++i) std::memcpy(&out.keys[i], hashes.data() + 16 * i, 8);
}

constexpr size_t kMostName = 1024;  // bytes

/// They stand in metrics, a hundred times each, in logs and in answers.
absl::Status CheckNames(const v1::HandshakeReply& in) {
  constexpr size_t kMostAddress = 64 << 10;  // bytes
  const auto check = [](const char* what, const std::string& said, size_t most) {
    if (said.size() <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("the worker's ", what, " has ", said.size(), " bytes, at most ", most));
  };
  for (const auto& [what, said] :
       std::initializer_list<std::pair<const char*, const std::string&>>{{"worker_id", in.worker_id()},
                                                                         {"incarnation", in.incarnation()},
                                                                         {"worker_version", in.worker_version()},
                                                                         {"phase", in.loading().phase()},
                                                                         {"model_digest", in.model_digest()},
                                                                         {"model_name", in.model_name()},
                                                                         {"numerics id", in.numerics().id()},
                                                                         {"kv_digest", in.kv_digest()},
                                                                         {"tokenizer_digest", in.tokenizer_digest()}}) {
    if (absl::Status status = check(what, said, kMostName); !status.ok()) return status;
  }
  return check("landing_address", in.landing_address(), kMostAddress);
}

}  // namespace

v1::WatchRequest EncodeWatch(const std::string& router_id, const ReportTerms& terms) {
  v1::WatchRequest out;
  out.set_router_id(router_id);
  out.set_load_interval_ms(static_cast<uint32_t>(Milliseconds(terms.every)));
  out.set_quiet_interval_ms(static_cast<uint32_t>(Milliseconds(terms.quiet)));
  return out;
}

WatchEvent DecodeEvent(const v1::WorkerEvent& in) {
  WatchEvent out;
  out.incarnation = in.incarnation();
  out.sequence_number = in.sequence_number();
  switch (in.event_case()) {
    case v1::WorkerEvent::kSnapshot:
      out.kind = WatchEvent::Kind::kSnapshot;
      TakeKeys(in.snapshot().hashes(), out);
      out.snapshot_last = in.snapshot().last();
      break;
    case v1::WorkerEvent::kStored:
      out.kind = WatchEvent::Kind::kStored;
      TakeKeys(in.stored().hashes(), out);
      out.digest = in.stored().digest();
      break;
    case v1::WorkerEvent::kRemoved:
      out.kind = WatchEvent::Kind::kRemoved;
      TakeKeys(in.removed().hashes(), out);
      out.digest = in.removed().digest();
      break;
    case v1::WorkerEvent::kState:
      out.kind = WatchEvent::Kind::kState;
      out.state = in.state().state() == v1::WorkerState::STATE_DRAINING  ? LinkState::kDraining
                  : in.state().state() == v1::WorkerState::STATE_LOADING ? LinkState::kLoading
                                                                         : LinkState::kReady;
      out.detail = Printable(in.state().detail(), kMostName);
      break;
    default: out.kind = WatchEvent::Kind::kLoad; out.load = DecodeLoad(in.load());
  }
  return out;
}

HandshakeAnswer DecodeHandshake(absl::Status status, const v1::HandshakeReply& reply) {
  HandshakeAnswer answer;
  answer.status = std::move(status);
  if (answer.status.ok()) answer.status = CheckNames(reply);
  if (!answer.status.ok()) return answer;
  answer.loading = reply.has_loading();
  answer.phase = reply.loading().phase();
  answer.progress = reply.loading().progress();
  answer.protocol = DecodeVersions<ProtocolVersions>(reply.protocol());
  answer.facts = DecodeFacts(reply);
  return answer;
}

}  // namespace baton::router
