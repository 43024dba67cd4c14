#include "router/fleet/relay_call.h"

#include <deque>
#include <mutex>
#include <utility>

#include "common/str_cat.h"
#include "proto/order_limits.h"
#include "proto/worker.pb.h"
#include "router/fleet/attach_codec.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

/// Of the requests in one message, or of the only one; the rest of it is for all other orders.
constexpr size_t kMostAttachBytes = kMostMessageBytes / 4 * 3;

class RelayOrders final : public RelayCall, public std::enable_shared_from_this<RelayOrders> {
 public:
  explicit RelayOrders(bool takes_short_ids) : takes_short_ids_(takes_short_ids) {}

  void Open(EventLoop& loop, Http2Stream::Options where, WorkerWire::RelayHandlers handlers,
            std::shared_ptr<CallCount> calls) {
    handlers_ = std::move(handlers);
    stream_ =
        OpenHttp2Stream(loop, std::move(where),
                        {[self = shared_from_this()](std::string_view message) { return self->TakeNews(message); },
                         [self = shared_from_this()] { return self->TakeOrders(); },
                         [self = shared_from_this(), calls = std::move(calls)](const absl::Status& why) {
                           self->Closed(why);
                           calls->Done();
                         }});
  }

  absl::Status Attach(const TokenizedRequest& generation, const AttachLeg& leg, size_t most) override {
    absl::Cord attach = AttachEntry(generation, leg, takes_short_ids_);
    if (attach.size() > kMostAttachBytes) {
      return absl::InvalidArgumentError(
          StrCat("the request takes ", attach.size(), " bytes on the way to its worker, at most ", kMostAttachBytes));
    }
    {
      std::lock_guard lock(mutex_);
      if (closed_) return absl::UnavailableError("the connection to the worker is closed");
      if (attaches_.size() >= most)
        return absl::ResourceExhaustedError(StrCat(attaches_.size(), " requests wait to be sent, the limit is ", most));
      attaches_.push_back({leg.leg_id, leg.attach_gen, std::move(attach)});
    }
    stream_->Wake();
    return absl::OkStatus();
  }
  /// What waits to be sent is not sent any more: a cancel would come before it.
  void Cancel(const CancelAttached& order) override {
    Add([&](v1::RelayUp& rest) {
      *rest.add_cancel() = EncodeCancel(order);
      if (order.index) return;
      std::erase_if(attaches_, [&order](const Waiting& one) {
        return one.leg_id == order.leg_id && one.attach_gen <= order.attach_gen;
      });
    });
  }
  void Credit(const GiveCredit& order) override {
    Add([&](v1::RelayUp& rest) { *rest.add_credit() = EncodeCredit(order); });
  }
  void Renew(const std::vector<LegRenewal>& legs) override {
    Add([&](v1::RelayUp& rest) {
      rest.clear_renewal();  // what was not sent yet is said again, where it still holds
      for (const LegRenewal& leg : legs) *rest.add_renewal() = EncodeRenewal(leg);
    });
  }
  void Meet(const std::string& landing_address) override {
    Add([&](v1::RelayUp& rest) { rest.add_meet()->set_landing_address(landing_address); });
  }
  void Close() override { stream_->Cancel(); }

 private:
  void Add(const auto& add) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      add(rest_);
    }
    stream_->Wake();
  }

  // ---- on the loop
  /// What has gathered, as one message: RelayUp's parts are joined by being sent one behind the other. Requests beyond
  /// what a message may hold wait for the next one.
  absl::Cord TakeOrders() {
    std::lock_guard lock(mutex_);
    absl::Cord out;
    for (int taken = 0; taken < kMostAttaches && !attaches_.empty(); ++taken) {
      if (out.size() + attaches_.front().bytes.size() > kMostAttachBytes) break;
      out.Append(std::move(attaches_.front().bytes));
      attaches_.pop_front();
    }
    if (rest_.ByteSizeLong() > 0) {
      out.Append(rest_.SerializeAsString());
      rest_.Clear();
    }
    return out;
  }
  absl::Status TakeNews(std::string_view message) {
    if (!down_.ParseFromArray(message.data(), static_cast<int>(message.size())))
      return absl::InternalError(StrCat("a message of ", message.size(), " bytes is no RelayDown"));
    news_.clear();
    for (v1::RelayEntry& entry : *down_.mutable_entries()) {
      news_.push_back({entry.request_id(), DecodeNews(std::move(entry))});
    }
    handlers_.on_news(news_);
    return absl::OkStatus();
  }
  void Closed(const absl::Status& why) {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    const WorkerWire::RelayHandlers handlers = std::exchange(handlers_, {});
    handlers.on_closed(why);
  }

  const bool takes_short_ids_;
  std::shared_ptr<Http2Stream> stream_;  // set once, before anybody else has this object
  WorkerWire::RelayHandlers handlers_;
  v1::RelayDown down_;         // read into again and again: its entries keep their memory
  std::vector<LegNews> news_;  // of down_; kept for its memory

  struct Waiting {
    std::string leg_id;
    uint64_t attach_gen = 0;
    absl::Cord bytes;  // as they are sent
  };
  std::mutex mutex_;  // guards what follows
  std::deque<Waiting> attaches_;
  v1::RelayUp rest_;  // all other orders
  bool closed_ = false;
};

}  // namespace

std::shared_ptr<RelayCall> OpenRelayCall(EventLoop& loop, Http2Stream::Options where, bool takes_short_ids,
                                         WorkerWire::RelayHandlers handlers, std::shared_ptr<CallCount> calls) {
  where.head.path = "/baton.v1.Worker/Relay";
  auto orders = std::make_shared<RelayOrders>(takes_short_ids);
  orders->Open(loop, std::move(where), std::move(handlers), std::move(calls));
  return orders;
}

}  // namespace baton::router
