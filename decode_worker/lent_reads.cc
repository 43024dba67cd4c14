#include "decode_worker/lent_reads.h"

#include <string>
#include <utility>

#include "common/status.h"

namespace baton::decode_worker {

absl::Status LentReads::CheckTakes(Transport& transport, const LentOutbox& outbox, uint64_t buffer_bytes) {
  if (mover_ == nullptr) return absl::FailedPreconditionError("the KV of this worker's GPUs is in parts");
  const std::span<std::byte> inbox = mover_->rooms().inbox;
  if (inbox.empty()) return absl::FailedPreconditionError("this GPU is not asked to");
  if (buffer_bytes == 0 || buffer_bytes > kMaxLandingSlotBytes || outbox.mark_bytes > inbox.size())
    return absl::FailedPreconditionError("its card is of another version");
  const auto known = takes_.find(&transport);
  if (known != takes_.end()) return known->second;
  return takes_[&transport] = transport.TakeInto(inbox);
}

void LentReads::Open(WriterId writer, Transport& transport, PeerNumber peer, LentOutbox outbox, uint64_t buffer_bytes,
                     Then opened) {
  if (lent_.contains(writer)) return;
  if (const absl::Status takes = CheckTakes(transport, outbox, buffer_bytes); !takes.ok()) return opened(takes);
  const uint64_t bytes = outbox.mark_bytes, at = outbox.bytes - bytes;
  lent_[writer] = {&transport, peer, std::move(outbox), buffer_bytes, false};
  const auto look = [this, writer, opened = std::move(opened)](const absl::Status& read) {
    const auto lent = lent_.find(writer);
    if (lent == lent_.end()) return opened(absl::FailedPreconditionError("it is gone"));
    const absl::Status status = read.ok() ? CheckMark(lent->second.outbox) : read;
    lent->second.open = status.ok();
    if (!status.ok()) lent_.erase(lent);
    opened(status);
  };
  jobs_.push_back({writer, at, 0, bytes, [this, bytes] { mover_->ClearInbox(bytes); }, look});
  Next();
}

/// Drivers and UCX say that they reach a GPU's memory where what they read does not arrive.
absl::Status LentReads::CheckMark(const LentOutbox& outbox) {
  std::string mark(outbox.mark_bytes, '\0');
  BATON_RETURN_IF_ERROR(mover_->SeeInbox(std::as_writable_bytes(std::span(mark))));
  if (MarkDigest(mark) == outbox.mark_digest) return absl::OkStatus();
  return absl::FailedPreconditionError("what is in its memory does not arrive");
}

bool LentReads::Has(WriterId writer) const {
  const auto lent = lent_.find(writer);
  return lent != lent_.end() && lent->second.open;
}

void LentReads::Read(WriterId writer, uint64_t buffer, uint64_t begin, uint64_t end, std::function<void()> begins,
                     Then then) {
  const auto found = lent_.find(writer);
  if (found == lent_.end()) return then(absl::AbortedError("its writer's outbox is closed"));
  const Lent& lent = found->second;
  const uint64_t room = lent.outbox.bytes - lent.outbox.mark_bytes;
  if (begin > end || end > lent.buffer_bytes || end > mover_->rooms().inbox.size() ||
      buffer >= room / lent.buffer_bytes) {
    return then(absl::DataLossError(StrCat("a slot of ", end, " bytes in buffer ", buffer, " of ",
                                           room / lent.buffer_bytes, " with ", lent.buffer_bytes)));
  }
  jobs_.push_back({writer, buffer * lent.buffer_bytes + begin, begin, end - begin, std::move(begins), std::move(then)});
  Next();
}

void LentReads::WhenFree(std::function<void()> work) {
  jobs_.push_back({0, 0, 0, 0, [] {}, [work = std::move(work)](const absl::Status&) { work(); }});
  Next();
}

void LentReads::Next() {
  while (!current_ && dirty_by_ == 0 && !jobs_.empty()) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    Begin(std::move(job));
  }
}

void LentReads::Begin(Job job) {
  current_ = std::move(job);
  current_->begins();
  if (current_->writer == 0) return End(absl::OkStatus());
  const auto lent = lent_.find(current_->writer);
  if (lent == lent_.end()) return End(absl::AbortedError("its writer's outbox is closed"));
  const std::span<std::byte> to = mover_->rooms().inbox.subspan(current_->to, current_->bytes);
  lent->second.transport->Read(lent->second.peer, lent->second.outbox.lent, current_->at, to,
                               [this, alive = alive_, number = ++number_](const absl::Status& status) {
                                 if (*alive) OnRead(number, status);
                               });
}

void LentReads::OnRead(uint64_t number, const absl::Status& status) {
  if (!current_ || number != number_) return;
  if (!status.ok() && !absl::IsInvalidArgument(status)) dirty_by_ = current_->writer;
  if (!status.ok())
    End(status);
  else if (!lent_.contains(current_->writer))
    End(absl::AbortedError("its writer's outbox is closed"));
  else
    End(mover_->SeeInbox({}));
  Next();
}

/// Whoever asks for the inbox meanwhile waits.
void LentReads::End(const absl::Status& status) {
  const Then then = std::move(current_->then);
  then(status);
  current_.reset();
}

void LentReads::OnFenced(WriterId writer) {
  if (dirty_by_ != writer) return;
  dirty_by_ = 0;
  Next();
}

void LentReads::Forget(const Transport* transport, const std::function<bool(WriterId)>& of) {
  takes_.erase(transport);
  std::erase_if(lent_, [&](const auto& one) { return of(one.first); });
  if (dirty_by_ != 0 && of(dirty_by_)) dirty_by_ = 0;
  if (current_ && current_->writer != 0 && of(current_->writer)) {
    ++number_;
    End(absl::AbortedError("its transport is gone"));
  }
  Next();
}

}  // namespace baton::decode_worker
