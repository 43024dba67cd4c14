#include "kernels/cuda/host/sample_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/device_failure.h"
#include "kernels/cuda/host/step_packer.h"

namespace baton::cuda {
namespace {

using kernels::SampleRow;

class ListWriter {
 public:
  ListWriter(SampleLists& lists, int vocab) : lists_(lists), vocab_(vocab) {}

  /// Sorts `entries`, joins equal tokens by adding their values, and appends them.
  ListSlice Append(std::vector<ListEntry> entries) {
    std::erase_if(entries, [&](const ListEntry& e) { return e.token < 0 || e.token >= vocab_; });
    std::ranges::stable_sort(entries, {}, &ListEntry::token);
    const auto begin = static_cast<int32_t>(lists_.entries.size());
    for (const ListEntry& e : entries) {
      const bool again = static_cast<int32_t>(lists_.entries.size()) > begin && lists_.entries.back().token == e.token;
      if (again)
        lists_.entries.back().value += e.value;
      else
        lists_.entries.push_back(e);
    }
    return {begin, static_cast<int32_t>(lists_.entries.size())};
  }

 private:
  SampleLists& lists_;
  int vocab_;
};

std::vector<ListEntry> WithValue(std::span<const int32_t> tokens, float value) {
  std::vector<ListEntry> out;
  out.reserve(tokens.size());
  for (int32_t t : tokens) out.push_back({t, value});
  return out;
}

bool Repeats(const SampleRow& row) { return row.repetition_penalty != 1.0f; }
bool Counts(const SampleRow& row) { return row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f; }

ListSlice Seen(const SampleRow& row, ListWriter& writer) {
  if (!Repeats(row)) return {0, 0};
  std::vector<ListEntry> all = WithValue(row.prompt_tokens, 0.0f);
  for (int32_t t : row.output_tokens) all.push_back({t, 0.0f});
  return writer.Append(std::move(all));
}

// Allowed tokens are a mask too: whatever happens to a forbidden logit in between, it ends at −∞.
int64_t Mask(const SampleRow& row, int vocab, std::vector<uint32_t>& masks) {
  if (row.grammar_mask == nullptr && row.allowed_tokens.empty()) return -1;
  const size_t words = static_cast<size_t>(vocab + 31) / 32, at = masks.size();
  masks.resize(at + words, row.allowed_tokens.empty() ? ~0u : 0u);
  for (int32_t t : row.allowed_tokens)
    if (t >= 0 && t < vocab) masks[at + t / 32] |= 1u << (t % 32);
  for (size_t w = 0; row.grammar_mask != nullptr && w < words; ++w) masks[at + w] &= row.grammar_mask[w];
  return static_cast<int64_t>(at);
}

}  // namespace

void SampleLists::MoveBy(size_t entries_before, size_t masks_before) {
  const auto by = static_cast<int32_t>(entries_before);
  for (SampleRowParams& row : rows) {
    for (ListSlice* list : {&row.bias, &row.seen, &row.counted}) *list = {list->begin + by, list->end + by};
    if (row.mask_offset >= 0) row.mask_offset += static_cast<int64_t>(masks_before);
  }
}

SampleLists PlanSample(std::span<const SampleRow> rows, int vocab) {
  SampleLists lists;
  ListWriter writer(lists, vocab);
  for (const SampleRow& row : rows) {
    BATON_CHECK(row.num_logprobs <= kMaxTopLogprobs, row.num_logprobs, " log-probabilities, at most ", kMaxTopLogprobs);
    SampleRowParams p{};
    p.seed = row.seed;
    p.position = row.position;
    p.sequence_index = row.sequence_index;
    kernels::CopyDrawNumbers(row, p);
    // A ban is a bias of −∞: no later edit brings it back.
    std::vector<ListEntry> bias = WithValue(row.banned_tokens, -std::numeric_limits<float>::infinity());
    for (const auto& [token, value] : row.logit_bias) bias.push_back({token, value});
    p.bias = writer.Append(std::move(bias));
    p.seen = Seen(row, writer);
    if (Counts(row)) p.counted = writer.Append(WithValue(row.output_tokens, 1.0f));
    p.unread_row = Repeats(row) || Counts(row) ? row.unread_row : -1;
    p.mask_offset = Mask(row, vocab, lists.masks);
    p.num_logprobs = row.num_logprobs;
    p.target = -1;
    lists.rows.push_back(p);
  }
  return lists;
}

namespace {

size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

/// Where the results of so many rows lie, bytes from the first: outputs, then top tokens and values.
struct ResultLayout {
  explicit ResultLayout(size_t rows)
      : top_tokens(Aligned(rows * sizeof(SampleRowOutput))),
        top_values(top_tokens + Aligned(rows * kMaxTopLogprobs * 4)),
        bytes(static_cast<size_t>(kernels::DrawBytes(static_cast<int64_t>(rows)))) {}
  size_t top_tokens, top_values, bytes;
};

/// Where a launch's arrays lie in one piece of memory, bytes from its start: raw copies, results, then what is
/// uploaded.
struct SampleLayout {
  SampleLayout(const SampleLists& lists, size_t vocab) {
    size_t raw_rows = 0;
    for (size_t r = 0; r < lists.rows.size(); ++r)
      if (lists.rows[r].num_logprobs >= 0 && lists.rows[r].target < 0) raw_rows = r + 1;
    PlaceResults(lists.rows.size(), raw_rows * vocab * 4);
    rows = Place(lists.rows.size() * sizeof(SampleRowParams));
    entries = Place(lists.entries.size() * sizeof(ListEntry));
    masks = Place(lists.masks.size() * 4);
  }
  /// Of a recorded launch: any row may want a raw copy, and nothing is uploaded.
  explicit SampleLayout(const RecordedShape& shape) {
    PlaceResults(static_cast<size_t>(shape.rows), static_cast<size_t>(shape.rows * shape.vocab * 4));
    rows = entries = masks = total;
  }
  void PlaceResults(size_t count, size_t raw_bytes) {
    raw = Place(raw_bytes);
    const ResultLayout results(count);
    out = Place(results.bytes);
    top_tokens = out + results.top_tokens;
    top_values = out + results.top_values;
  }
  size_t Place(size_t bytes) { return std::exchange(total, total + Aligned(bytes)); }
  size_t total = 0;
  size_t raw, out, top_tokens, top_values, rows, entries, masks;
};
constexpr size_t kAlignment = kernels::device_sizes::kSampleAlignment;  ///< of a layout's arrays
static_assert(kernels::device_sizes::kSampleRow == sizeof(SampleRowParams) &&
              kernels::device_sizes::kSampleOutput == sizeof(SampleRowOutput) &&
              kernels::device_sizes::kListEntry == sizeof(ListEntry) && kernels::kMostCudaLogprobs == kMaxTopLogprobs);

size_t RowBytes(size_t entries, bool masked, size_t vocab) {
  return static_cast<size_t>(
      kernels::SampleRowBytes(static_cast<int64_t>(entries), masked, static_cast<int64_t>(vocab)));
}
/// At most: equal tokens of a list are joined.
size_t RowBytes(const SampleRow& row, size_t vocab) {
  const size_t bias = row.banned_tokens.size() + row.logit_bias.size();
  const size_t seen = Repeats(row) ? row.prompt_tokens.size() + row.output_tokens.size() : 0;
  const size_t counted = Counts(row) ? row.output_tokens.size() : 0;
  return RowBytes(std::min(vocab, bias) + std::min(vocab, seen) + std::min(vocab, counted),
                  row.grammar_mask != nullptr || !row.allowed_tokens.empty(), vocab);
}

/// The first of `rows` that fit.
size_t RowsThatFit(std::span<const SampleRow> rows, size_t vocab, size_t work_bytes) {
  size_t bytes = kAlignment, raw_rows = 0;
  for (size_t n = 0; n < rows.size(); ++n) {
    if (rows[n].num_logprobs >= 0) raw_rows = n + 1;
    bytes += RowBytes(rows[n], vocab);
    if (n > 0 && bytes + raw_rows * vocab * 4 > work_bytes) return n;
  }
  return rows.size();
}

SampleParams ParamsOf(const kernels::Tensor& logits, char* base, const SampleLayout& layout, const SampleInputs& sent,
                      int32_t* drawn) {
  auto at = [&]<typename T>(T*& pointer, size_t offset) { pointer = reinterpret_cast<T*>(base + offset); };
  SampleParams p{};
  p.logits = logits.Data<float>();
  p.stride = logits.row_stride;
  p.count = static_cast<int>(logits.rows());
  p.vocab = static_cast<int>(logits.cols());
  p.drawn = drawn;
  at(p.raw, layout.raw);
  at(p.out, layout.out);
  at(p.top_tokens, layout.top_tokens);
  at(p.top_logprobs, layout.top_values);
  p.step_tokens = sent.step_tokens;
  if (sent.rows != nullptr) {
    p.rows = sent.rows;
    p.entries = At<ListEntry>(sent.lists, 0);
    p.masks = At<uint32_t>(sent.lists, 0);
    return p;
  }
  at(p.rows, layout.rows);
  at(p.entries, layout.entries);
  at(p.masks, layout.masks);
  return p;
}

/// Sends the lists first when they were not. Returns where the results will be on the device, and how many bytes.
std::pair<const char*, size_t> Launch(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                      const SampleLists& lists, const SampleInputs& sent, int32_t* drawn) {
  const size_t vocab = static_cast<size_t>(logits.cols());
  const SampleLayout layout(lists, vocab);
  char* base = static_cast<char*>(scratch.Ensure(layout.total));
  if (sent.rows == nullptr) {
    std::vector<char> inputs(layout.total - layout.rows);
    const auto put = [&](size_t offset, const auto& values) {
      if (!values.empty())
        std::memcpy(inputs.data() + (offset - layout.rows), values.data(), values.size() * sizeof(values[0]));
    };
    put(layout.rows, lists.rows);
    put(layout.entries, lists.entries);
    put(layout.masks, lists.masks);
    stream.Upload(base + layout.rows, inputs.data(), inputs.size());
  }
  LaunchSample(stream, ParamsOf(logits, base, layout, sent, drawn));
  return {base + layout.out, ResultLayout(lists.rows.size()).bytes};
}

/// Appends what a launch, of whose rows `rows` are the first, left in `bytes`.
void Read(const char* bytes, std::span<const SampleRowParams> rows, const ResultLayout& layout,
          std::vector<kernels::SampleResult>& results) {
  constexpr size_t kTop = kMaxTopLogprobs;
  for (size_t r = 0; r < rows.size(); ++r) {
    SampleRowOutput o;
    std::memcpy(&o, bytes + r * sizeof(o), sizeof(o));
    kernels::SampleResult& result = results.emplace_back();
    result.token = o.token;
    if (rows[r].num_logprobs < 0) continue;
    result.chosen = {o.token, o.logprob, o.rank};
    for (int i = 0; i < o.top_count; ++i) {
      kernels::TokenLogprob& top = result.top.emplace_back();
      std::memcpy(&top.token, bytes + layout.top_tokens + (r * kTop + i) * 4, 4);
      std::memcpy(&top.logprob, bytes + layout.top_values + (r * kTop + i) * 4, 4);
      top.rank = i + 1;
    }
  }
}

/// One launch, and its results.
void RunLists(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits, const SampleLists& lists,
              const int32_t* step_tokens, std::vector<kernels::SampleResult>& results) {
  const auto [from, size] = Launch(stream, scratch, logits, lists, {step_tokens}, nullptr);
  std::vector<char> bytes(size);
  stream.CopyAsync(bytes.data(), from, size);
  EndIfDeviceFailed(stream.Synchronize());
  Read(bytes.data(), lists.rows, ResultLayout(lists.rows.size()), results);
}

/// One launch whose results are read later.
class BegunDraw final : public kernels::Draw {
 public:
  /// `rows` are the first of as many as `layout` has.
  BegunDraw(DrawSlot& slot, std::vector<SampleRowParams> rows, const ResultLayout& layout)
      : slot_(slot), layout_(layout), rows_(std::move(rows)) {
    slot_.taken = false;
  }
  ~BegunDraw() override {
    if (!taken_) Await();
  }
  bool ready() const override { return false; }
  std::vector<kernels::SampleResult> Take() override {
    BATON_CHECK(!taken_, "a draw is taken twice");
    Await();
    std::vector<kernels::SampleResult> results;
    results.reserve(rows_.size());
    Read(static_cast<const char*>(slot_.results->memory.data()), rows_, layout_, results);
    return results;
  }

 private:
  void Await() {
    slot_.results->Await();
    ++slot_.waits;
    taken_ = slot_.taken = true;
  }
  DrawSlot& slot_;
  const ResultLayout layout_;
  bool taken_ = false;
  const std::vector<SampleRowParams> rows_;
};

/// Copies the results at `from` into `slot`.
std::unique_ptr<kernels::Draw> BeginRead(gpu::Stream& stream, const char* from, const ResultLayout& layout,
                                         std::vector<SampleRowParams> rows, DrawSlot& slot) {
  BATON_CHECK(slot.taken, "more than two draws are begun and not taken");
  BATON_CHECK(layout.bytes <= slot.results->memory.bytes());
  stream.CopyAsync(slot.results->memory.data(), from, layout.bytes);
  stream.Record(slot.results->copied);
  return std::make_unique<BegunDraw>(slot, std::move(rows), layout);
}

}  // namespace

bool FitOneLaunch(std::span<const SampleRow> rows, int vocab, size_t work_bytes) {
  return RowsThatFit(rows, static_cast<size_t>(vocab), work_bytes) == rows.size();
}

std::vector<kernels::SampleResult> RunSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                             std::span<const SampleRow> rows, const int32_t* step_tokens,
                                             size_t work_bytes) {
  std::vector<kernels::SampleResult> results;
  results.reserve(rows.size());
  for (size_t first = 0; first < rows.size();) {
    const size_t count = RowsThatFit(rows.subspan(first), static_cast<size_t>(logits.cols()), work_bytes);
    RunLists(stream, scratch, logits.Rows(static_cast<int64_t>(first), static_cast<int64_t>(count)),
             PlanSample(rows.subspan(first, count), static_cast<int>(logits.cols())), step_tokens, results);
    first += count;
  }
  return results;
}

absl::Status DrawSlot::Reserve(const gpu::Stream& stream, int64_t rows) {
  BATON_ASSIGN_OR_RETURN(results,
                         Pinned::Make(stream, ResultLayout(static_cast<size_t>(rows)).bytes, "the tokens of a step"));
  return absl::OkStatus();
}

std::unique_ptr<kernels::Draw> BeginSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                           SampleLists lists, const SampleInputs& sent, int32_t* drawn,
                                           DrawSlot& slot) {
  const size_t count = lists.rows.size();
  const auto [from, size] = Launch(stream, scratch, logits, lists, sent, drawn);
  return BeginRead(stream, from, ResultLayout(count), std::move(lists.rows), slot);
}

SampleRowParams DrawsNothing() {
  SampleRowParams row{};
  row.mask_offset = row.num_logprobs = -1;  // `target` is 0: a token that is given
  return row;
}

int64_t RecordedSampleBytes(int64_t rows, int64_t vocab) {
  return static_cast<int64_t>(SampleLayout(RecordedShape{rows, vocab}).total);
}

void RecordSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits, const SampleInputs& sent,
                  int32_t* drawn) {
  const SampleLayout layout(RecordedShape{logits.rows(), logits.cols()});
  LaunchSample(stream, ParamsOf(logits, static_cast<char*>(scratch.Ensure(layout.total)), layout, sent, drawn));
}

std::unique_ptr<kernels::Draw> ReadRecordedSample(gpu::Stream& stream, Scratch& scratch,
                                                  std::vector<SampleRowParams> rows, const RecordedShape& shape,
                                                  DrawSlot& slot) {
  const SampleLayout layout(shape);
  const char* from = static_cast<const char*>(scratch.Ensure(layout.total)) + layout.out;
  return BeginRead(stream, from, ResultLayout(static_cast<size_t>(shape.rows)), std::move(rows), slot);
}

std::vector<kernels::SampleResult> RunLogprobs(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                               std::span<const int32_t> targets, int32_t k, size_t work_bytes) {
  std::vector<kernels::SampleResult> results;
  results.reserve(targets.size());
  const size_t at_a_time = std::max<size_t>(1, (work_bytes - std::min(work_bytes, kAlignment)) / RowBytes(0, false, 0));
  for (size_t first = 0; first < targets.size(); first += at_a_time) {
    SampleLists lists;
    for (int32_t target : targets.subspan(first, std::min(at_a_time, targets.size() - first))) {
      BATON_CHECK(target >= 0 && target < logits.cols(), "target ", target, " of ", logits.cols());
      SampleRowParams row{};
      row.mask_offset = -1;
      row.num_logprobs = std::max(k, 0);
      row.target = target;
      lists.rows.push_back(row);
    }
    RunLists(stream, scratch, logits.Rows(static_cast<int64_t>(first), static_cast<int64_t>(lists.rows.size())), lists,
             nullptr, results);
  }
  return results;
}

}  // namespace baton::cuda
