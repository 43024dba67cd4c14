#include "engine/step/step_batch.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace baton::engine {
namespace {

constexpr size_t kCopyWords = 3;
/// Bits of the first word.
constexpr int32_t kOpen = 1, kFollowed = 2;

void Append(std::vector<int32_t>& words, std::span<const int32_t> list) {
  words.push_back(static_cast<int32_t>(list.size()));
  words.insert(words.end(), list.begin(), list.end());
}

// Takes lists of words off the front; an overrun is noted and everything after it is empty.
class Reader {
 public:
  explicit Reader(std::span<const int32_t> words) : left_(words) {}
  std::vector<int32_t> List() {
    const int32_t size = left_.empty() ? -1 : left_[0];
    if (size < 0 || static_cast<size_t>(size) > left_.size() - 1) {
      overrun_ = true;
      left_ = {};
      return {};
    }
    const auto list = left_.subspan(1, static_cast<size_t>(size));
    left_ = left_.subspan(1 + list.size());
    return {list.begin(), list.end()};
  }
  bool AtEnd() const { return left_.empty(); }
  bool whole() const { return !overrun_ && left_.empty(); }

 private:
  std::span<const int32_t> left_;
  bool overrun_ = false;
};

}  // namespace

void StepBatch::DropRows() {
  row_start.assign(1, 0);
  context.clear();
  logit_rows.clear();
  for (std::vector<int32_t>& tables : block_tables) tables.clear();
  open = false;
}

std::vector<int32_t> StepBatch::Encode() const {
  std::vector<int32_t> words{(open ? kOpen : 0) | (followed ? kFollowed : 0)}, flat;
  for (const BlockCopy& copy : copies) flat.insert(flat.end(), {copy.group, copy.src, copy.dst});
  Append(words, flat);
  Append(words, row_start);
  Append(words, context);
  Append(words, logit_rows);
  for (const std::vector<int32_t>& tables : block_tables) Append(words, tables);
  return words;
}

absl::StatusOr<StepBatch> StepBatch::Decode(std::span<const int32_t> words) {
  StepBatch batch;
  const int32_t flags = words.empty() ? -1 : words[0];
  batch.open = (flags & kOpen) != 0;
  batch.followed = (flags & kFollowed) != 0;
  Reader in(words.subspan(std::min<size_t>(1, words.size())));
  const std::vector<int32_t> flat = in.List();
  for (size_t i = 0; i + kCopyWords <= flat.size(); i += kCopyWords) {
    batch.copies.push_back({flat[i], flat[i + 1], flat[i + 2]});
  }
  batch.row_start = in.List();
  batch.context = in.List();
  batch.logit_rows = in.List();
  while (!in.AtEnd()) batch.block_tables.push_back(in.List());
  if (flags < 0 || flags > (kOpen | kFollowed) || !in.whole() || flat.size() % kCopyWords != 0 ||
      batch.row_start.size() != batch.context.size() + 1) {
    return absl::InvalidArgumentError(StrCat(words.size(), " words are no step"));
  }
  return batch;
}

void RunCopies(const StepBatch& batch, KvMemory& memory, kernels::Ops& ops) {
  for (size_t g = 0; g < memory.groups().size(); ++g) {
    std::vector<int32_t> src, dst;
    for (const BlockCopy& c : batch.copies) {
      if (c.group != static_cast<int32_t>(g)) continue;
      src.push_back(c.src);
      dst.push_back(c.dst);
    }
    if (src.empty()) continue;
    for (const kernels::KvLayerView& layer : memory.groups()[g].layers) ops.CopyBlocks(src, dst, layer);
  }
}

absl::StatusOr<kernels::Tensor> RunRows(const StepBatch& batch, const RowTokens& tokens, Model& model, KvMemory& memory,
                                        const std::atomic<bool>& cancel, std::function<void(int)> on_layer_kv) {
  ForwardBatch forward;
  forward.tokens = tokens.ids;
  forward.drawn_rows = tokens.drawn_rows;
  forward.draws = tokens.draws;
  forward.logit_rows = batch.logit_rows;
  forward.on_layer_kv = std::move(on_layer_kv);
  const auto sequences = static_cast<int64_t>(batch.context.size());
  for (const std::vector<int32_t>& tables : batch.block_tables) {
    forward.groups.push_back({batch.row_start, batch.context, tables,
                              static_cast<int64_t>(tables.size()) / std::max<int64_t>(1, sequences)});
  }
  return model.Forward(forward, memory.groups(), cancel);
}

}  // namespace baton::engine
