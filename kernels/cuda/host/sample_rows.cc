#include "kernels/cuda/host/sample_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/check.h"

namespace baton::cuda {
namespace {

using kernels::SampleRow;
using Entry = std::pair<int32_t, float>;

class ListWriter {
 public:
  ListWriter(SampleLists& lists, int vocab) : lists_(lists), vocab_(vocab) {}

  /// Sorts `entries_`, joins equal tokens by adding their values, and appends them.
  ListSlice Append(std::vector<Entry> entries) {
    std::erase_if(entries, [&](const Entry& e) { return e.first < 0 || e.first >= vocab_; });
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.first < b.first; });
    const auto begin = static_cast<int32_t>(lists_.tokens.size());
    for (const Entry& e : entries) {
      const bool again = static_cast<int32_t>(lists_.tokens.size()) > begin && lists_.tokens.back() == e.first;
      if (again) {
        lists_.values.back() += e.second;
        continue;
      }
      lists_.tokens.push_back(e.first);
      lists_.values.push_back(e.second);
    }
    return {begin, static_cast<int32_t>(lists_.tokens.size())};
  }

 private:
  SampleLists& lists_;
  int vocab_;
};

std::vector<Entry> WithValue(std::span<const int32_t> tokens, float value) {
  std::vector<Entry> out;
  out.reserve(tokens.size());
  for (int32_t t : tokens) out.emplace_back(t, value);
  return out;
}

// presence + frequency · count of every token that was output.
ListSlice Counted(const SampleRow& row, ListWriter& writer, SampleLists& lists) {
  if (row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f) return {0, 0};
  const ListSlice slice = writer.Append(WithValue(row.output_tokens, 1.0f));
  for (int i = slice.begin; i < slice.end; ++i)
    lists.values[i] = row.frequency_penalty * lists.values[i] + row.presence_penalty;
  return slice;
}

ListSlice Seen(const SampleRow& row, ListWriter& writer) {
  if (row.repetition_penalty == 1.0f) return {0, 0};
  std::vector<Entry> all = WithValue(row.prompt_tokens, 0.0f);
  for (int32_t t : row.output_tokens) all.emplace_back(t, 0.0f);
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
    std::vector<Entry> bias = WithValue(row.banned_tokens, -std::numeric_limits<float>::infinity());
    bias.insert(bias.end(), row.logit_bias.begin(), row.logit_bias.end());
    p.bias = writer.Append(std::move(bias));
    p.seen = Seen(row, writer);
    p.counted = Counted(row, writer, lists);
    p.mask_offset = Mask(row, vocab, lists.masks);
    p.num_logprobs = row.num_logprobs;
    p.target = -1;
    lists.rows.push_back(p);
  }
  return lists;
}

std::vector<kernels::SampleResult> RunSample(gpu::Stream& stream, Scratch& scratch, const kernels::Tensor& logits,
                                             const SampleLists& lists) {
  const size_t rows = lists.rows.size(), vocab = static_cast<size_t>(logits.cols());
  if (rows == 0) return {};
  // One piece of memory: raw copies, outputs, top tokens and values, then what is uploaded.
  constexpr size_t kTop = kMaxTopLogprobs;
  size_t total = 0;
  auto place = [&](size_t bytes) { return std::exchange(total, total + (bytes + 15) / 16 * 16); };
  const size_t at_raw = place(rows * vocab * 4), at_out = place(rows * sizeof(SampleRowOutput));
  const size_t at_tokens = place(rows * kTop * 4), at_values = place(rows * kTop * 4), results_end = total;
  const size_t at_rows = place(rows * sizeof(SampleRowParams)), at_list = place(lists.tokens.size() * 4);
  const size_t at_list_values = place(lists.values.size() * 4), at_masks = place(lists.masks.size() * 4);
  char* base = static_cast<char*>(scratch.Ensure(total));
  stream.Upload(base + at_rows, lists.rows.data(), rows * sizeof(SampleRowParams));
  stream.Upload(base + at_list, lists.tokens.data(), lists.tokens.size() * 4);
  stream.Upload(base + at_list_values, lists.values.data(), lists.values.size() * 4);
  stream.Upload(base + at_masks, lists.masks.data(), lists.masks.size() * 4);
  auto at = [&]<typename T>(T*& pointer, size_t offset) { pointer = reinterpret_cast<T*>(base + offset); };
  SampleParams p{};
  p.logits = logits.Data<float>();
  p.stride = logits.row_stride;
  p.count = static_cast<int>(rows);
  p.vocab = static_cast<int>(vocab);
  at(p.raw, at_raw);
  at(p.rows, at_rows);
  at(p.tokens, at_list);
  at(p.values, at_list_values);
  at(p.masks, at_masks);
  at(p.out, at_out);
  at(p.top_tokens, at_tokens);
  at(p.top_logprobs, at_values);
  LaunchSample(stream, p);
  std::vector<char> results(results_end - at_out);
  stream.CopyAsync(results.data(), base + at_out, results.size());
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), "device: ", error);
  std::vector<kernels::SampleResult> out(rows);
  for (size_t r = 0; r < rows; ++r) {
    SampleRowOutput o;
    std::memcpy(&o, results.data() + r * sizeof(o), sizeof(o));
    out[r].token = o.token;
    if (lists.rows[r].num_logprobs < 0) continue;
    out[r].chosen = {o.token, o.logprob, o.rank};
    for (int i = 0; i < o.top_count; ++i) {
      kernels::TokenLogprob& top = out[r].top.emplace_back();
      std::memcpy(&top.token, results.data() + (at_tokens - at_out) + (r * kTop + i) * 4, 4);
      std::memcpy(&top.logprob, results.data() + (at_values - at_out) + (r * kTop + i) * 4, 4);
      top.rank = i + 1;
    }
  }
  return out;
}

}  // namespace baton::cuda
