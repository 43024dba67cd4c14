// Says to the UCX port of a decode worker, by UCX's own messages, what no honest prefill worker says, and stays until
// its standard input ends. For tests alone.
//   ucx_liar ADDRESS writes|write|message|memory      ADDRESS: the hexadecimal digits behind "ucx-tcp:"
#include <poll.h>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "common/check.h"
#include "kvtransfer/ucx/ucx_peers.h"

namespace baton::ucx {
namespace {

constexpr uint64_t kNumber = 7;  // of our connection

class UcxLiar {
 public:
  explicit UcxLiar(const std::string& address)
      : worker_(Worker::Create({.name = "ucx-tcp", .transports = "tcp", .devices = "lo"}).value()),
        address_(PeerAddress::Parse(absl::HexStringToBytes(address)).value()) {
    for (unsigned id = kHello; id <= kBye; ++id) {  // UCX dies of an answer that nobody takes
      ucp_am_handler_param_t param{};
      param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
      param.id = id;
      param.arg = id == kHello ? &welcomes_ : &others_;
      param.cb = [](void* count, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
        return ++*static_cast<int*>(count), UCS_OK;
      };
      BATON_CHECK(ucp_worker_set_am_recv_handler(worker_->get(), &param) == UCS_OK);
    }
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(address_.worker.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    BATON_CHECK(ucp_ep_create(worker_->get(), &params, &endpoint_) == UCS_OK);
  }

  PeerAddress own() const { return worker_->address(); }
  void Turn() { ucp_worker_progress(worker_->get()); }
  void Say(MessageKind kind, Head head, const std::string& payload) {
    head.incarnation = own().incarnation;
    head.number = kNumber;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    void* sending = ucp_am_send_nbx(endpoint_, kind, &head, sizeof(head), payload.data(), payload.size(), &param);
    while (UCS_PTR_IS_PTR(sending) && ucp_request_check_status(sending) == UCS_INPROGRESS) Turn();
    if (UCS_PTR_IS_PTR(sending)) ucp_request_free(sending);
  }
  /// Is welcome.
  void Come() {
    Say(kHello, {}, own().Pack());
    while (welcomes_ == 0) Turn();
  }
  void Stay() {
    pollfd input{0, POLLIN, 0};
    while (poll(&input, 1, 1) == 0) Turn();
  }

 private:
  int welcomes_ = 0, others_ = 0;
  std::unique_ptr<Worker> worker_;
  PeerAddress address_;
  ucp_ep_h endpoint_ = nullptr;
};

void Lie(UcxLiar& liar, std::string_view what) {
  if (what == "memory") {
    PeerAddress lie = liar.own();
    lie.landing = {1, uint64_t{1} << 63};
    return liar.Say(kHello, {}, lie.Pack());
  }
  liar.Come();
  if (what == "write") liar.Say(kWrite, {.write = 1, .total = uint64_t{1} << 62}, "x");
  if (what == "message") liar.Say(kMessage, {}, std::string(kMaxMessageBytes + 1, 'm'));
  if (what == "writes") {
    for (uint64_t write = 1; write <= 1025; ++write) liar.Say(kWrite, {.write = write, .total = 4096}, "x");
  }
}

}  // namespace
}  // namespace baton::ucx

int main(int count, char** words) {
  if (count != 3) return 2;
  baton::ucx::UcxLiar liar(words[1]);
  baton::ucx::Lie(liar, words[2]);
  std::puts("said");
  std::fflush(stdout);
  liar.Stay();
  return 0;
}
