// FakeWorker: a scripted worker behind the real protocol. Each choice's tokens are letters that follow from its index
// and their position alone, so that a test knows the text, whoever produces it. Credits are honoured.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "proto/worker.pb.h"

namespace baton::router {

struct FakeWorkerOptions {
  int port = 0;  ///< 0 = any
  int32_t max_model_len = 2048;
  std::string model_digest = "digest";
  std::string kv_digest{};
  uint32_t protocol_min = 1, protocol_max = 1;
  bool takes_short_ids = true;  ///< in an Attach
  std::string tokenizer_digest{};
  v1::WorkerRole role = v1::WORKER_ROLE_BOTH;
  bool loading = false;
  int hold_after = 1 << 30;  ///< tokens per choice, then none until Release()
  int tokens_per_message = 1;
  /// > 0: one step of all choices at this pace, as an engine does, at multiples of it on the steady clock; 0: each as
  /// fast as credit allows
  Duration step_every{};
  Duration load_every{};       ///< at least so long between two reports of load; 0: one after every change
  absl::Status refuse;         ///< every Attach is answered with it
  uint32_t cached_tokens = 0;  ///< of each prompt, but never its last token
  bool logprobs_top = true;
  int vocab_size = 548;
  std::string incarnation = "inc";
  std::string numerics{};
  std::map<std::string, double> peers{};  ///< of a prefill worker: GB/s to an incarnation
};

/// Thread-safe.
class FakeWorker {
 public:
  explicit FakeWorker(FakeWorkerOptions options = {});
  ~FakeWorker();

  std::string address() const;
  int port() const;
  /// Closes every stream at once, as a killed process does.
  void Kill();
  void Release();  ///< held tokens flow, here and later
  void Hold(int after);
  void DoneLoading();
  void SetDraining();
  /// Events on the Watch stream.
  void Stored(const std::vector<uint64_t>& keys);
  void SkipSequenceNumber();

  // ---- what it has seen
  std::vector<v1::Attach> attaches() const;
  std::vector<v1::RelayCancel> cancels() const;
  std::string hash_key() const;  ///< of the greeting
  /// "Watch inc": the streams that came, each once, and the incarnation that their metadata says
  std::set<std::string> meant_for() const;
  int64_t tokens_sent() const;
  int watches() const;
  /// True as soon as `condition` holds; it is looked at after every change. False after 10 s.
  bool Wait(const std::function<bool()>& condition) const;
  /// Waits until every unfinished choice has been out of credit for `quiet` without a break.
  bool WaitStarved(Duration quiet) const;

  static int32_t TokenAt(uint32_t index, uint64_t position) {
    return 67 + static_cast<int32_t>((5 * index + 3 * position) % 26);
  }
  /// The text of `tokens` tokens from `position` on.
  static std::string TextOf(uint32_t index, uint64_t position, size_t tokens);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace baton::router
