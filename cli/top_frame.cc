#include "cli/top_frame.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/foreign_text.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr double kMinuteMs = 60000;
constexpr const char *kBold = "1", *kDim = "2", *kRed = "31", *kGreen = "32", *kYellow = "33", *kBlue = "34",
                     *kViolet = "35";

std::string Ms(double ms) {
  if (ms >= 60000) return absl::StrFormat("%.1f min", ms / 60000);
  if (ms >= 1000) return absl::StrFormat("%.2f s", ms / 1000);
  return ms >= 100 ? absl::StrFormat("%.0f ms", ms) : absl::StrFormat("%.1f ms", ms);
}
std::string Rate(std::optional<double> value) { return value ? absl::StrFormat("%.0f", *value) : "-"; }
std::string Bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return absl::StrFormat("%.*f %s", bytes >= 100 || unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}
double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

// What tells a request from the others: names that clients give begin alike, and end in what is their own.
std::string ShortId(std::string_view id, bool unicode) {
  constexpr size_t kShown = 12;
  const bool drawn = id.substr(0, kShown).find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (id.size() <= kShown || drawn) return std::string(id.substr(0, kShown));
  return StrCat(id.substr(0, 5), unicode ? "…" : "~", id.substr(id.size() - 6));
}

/// A line that is written from the left, cell by cell, and never longer than the screen.
class Line {
 public:
  Line(const FrameLook& look) : look_(look) {}  // NOLINT: a line is of a look
  /// `width`: of the cell; negative: words stand at its right end. 0: as long as the words.
  Line& Cell(std::string_view words, int width = 0, const char* colour = nullptr) {
    std::string text = Printable(words, 200);
    const int room = look_.columns - used_, wanted = width == 0 ? Width(text) : std::min(std::abs(width), room);
    text = Cut(text, std::min(wanted, room));
    const std::string pad(static_cast<size_t>(std::max(0, std::min(wanted, room) - Width(text))), ' ');
    used_ += Width(text) + static_cast<int>(pad.size());
    if (width < 0) out_ += pad;
    Raw(text, colour);
    if (width > 0) out_ += pad;
    return *this;
  }
  Line& Space(int n = 2) { return Cell(std::string(static_cast<size_t>(n), ' ')); }
  /// Parts of a bar: (share, colour, block).
  Line& Bar(const std::vector<std::pair<double, const char*>>& parts, int width) {
    width = std::min(width, look_.columns - used_);
    int left = width;
    double sum = 0;
    for (const auto& [share, colour] : parts) {
      sum += share;
      const int until = std::clamp(static_cast<int>(std::ceil(sum * width - 1e-9)), width - left, width);
      const int cells = until - (width - left);
      Blocks(cells, colour, colour == kDim ? "▒" : "█", colour == kDim ? '=' : '#');
      left -= cells;
    }
    Blocks(left, kDim, "░", '.');
    used_ += std::max(0, width);
    return *this;
  }
  std::string Text() const {
    std::string out = out_;
    if (!look_.colour) out.erase(out.find_last_not_of(' ') + 1);
    return out;
  }

 private:
  static int Width(std::string_view text) {
    return static_cast<int>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  }
  static std::string Cut(const std::string& text, int width) {
    size_t at = 0;
    for (int n = 0; at < text.size(); ++at) {
      if ((text[at] & 0xC0) != 0x80 && n++ == width) break;
    }
    return text.substr(0, at);
  }
  void Raw(std::string_view text, const char* colour) {
    if (look_.colour && colour != nullptr && !text.empty()) {
      absl::StrAppend(&out_, "\x1b[", colour, "m", AbslView(text), "\x1b[0m");
    } else {
      out_ += text;
    }
  }
  void Blocks(int count, const char* colour, const char* block, char plain) {
    std::string text;
    for (int i = 0; i < count; ++i) look_.unicode ? text += block : text += plain;
    Raw(text, colour);
  }

  const FrameLook& look_;
  std::string out_;
  int used_ = 0;
};

std::string Way(const std::string& prefill, const std::string& worker, const FrameLook& look) {
  if (prefill.empty()) return worker;
  return StrCat(prefill, look.unicode ? " → " : " -> ", worker);
}

const char* StateColour(const std::string& state) {
  if (state == "ready") return kGreen;
  return state == "lost" || state == "mismatch" || state == "no_worker" ? kRed : kYellow;
}

using Lines = std::vector<std::string>;

/// Columns stand closer in a terminal of 80.
bool IsNarrow(const FrameLook& look) { return look.columns < 92; }
/// Of a cell with a time.
int TimeWidth(const FrameLook& look) { return IsNarrow(look) ? -8 : -10; }

void AddHead(const TopModel& m, const FrameLook& look, const std::string& note, Lines& out) {
  Line head(look);
  head.Cell("Baton", 0, kBold).Space().Cell(m.server()).Space().Cell(m.status, 0, StateColour(m.status));
  if (!note.empty()) head.Space().Cell(note, 0, kRed);
  out.push_back(head.Text());
  if (m.status != "ready" && !m.detail.empty()) out.push_back(Line(look).Cell(m.detail, 0, kYellow).Text());
  std::vector<double> first, gaps;
  int64_t failed = 0;
  for (const TopFinished& f : m.finished()) {
    if (f.ended < m.time() - kMinuteMs) continue;
    if (f.first_token_ms > 0) first.push_back(f.first_token_ms);
    if (f.mean_gap_ms > 0) gaps.push_back(f.mean_gap_ms);
    failed += f.reason == "error" || f.reason == "refused" ? 1 : 0;
  }
  Line numbers(look);
  numbers.Cell("running ", 0, kDim).Cell(StrCat(m.running, " of ", m.max_running), 0, kBold);
  numbers.Cell("   out ", 0, kDim).Cell(Rate(m.generation_tokens_per_s) + " tok/s", 0, kBold);
  numbers.Cell("   prompt ", 0, kDim).Cell(Rate(m.prompt_tokens_per_s) + " tok/s", 0, kBold);
  if (m.texts_queued > 0) numbers.Cell("   texts waiting ", 0, kDim).Cell(StrCat(m.texts_queued), 0, kBold);
  if (m.recomputing > 0) numbers.Cell("   computed again ", 0, kDim).Cell(StrCat(m.recomputing), 0, kYellow);
  out.push_back(numbers.Text());
  Line minute(look);
  minute.Cell(absl::StrFormat("last minute: %d answered", first.size()), 0, kDim);
  if (failed > 0) minute.Cell(absl::StrFormat(", %d failed", failed), 0, kRed);
  if (!first.empty()) {
    minute.Cell(absl::StrFormat("   first token %s, p95 %s", Ms(Percentile(first, .5)), Ms(Percentile(first, .95))), 0,
                kDim);
  }
  if (!gaps.empty())
    minute.Cell(absl::StrFormat("   gap %s, p95 %s", Ms(Percentile(gaps, .5)), Ms(Percentile(gaps, .95))), 0, kDim);
  if (m.lost_events() > 0) minute.Cell(StrCat("   events missed ", m.lost_events()), 0, kYellow);
  out.push_back(minute.Text());
}

void AddWorkers(const TopModel& m, const FrameLook& look, Lines& out) {
  out.push_back("");
  const bool narrow = IsNarrow(look);
  const int name = narrow ? 14 : 16, role = narrow ? 8 : 9, step = narrow ? -8 : -9, drawn = narrow ? -7 : -8;
  Line title(look);
  title.Cell("WORKER", name, kDim)
      .Cell("ROLE", role, kDim)
      .Cell("STATE", 10, kDim)
      .Cell("RUN", -4, kDim)
      .Cell("WAIT", -5, kDim);
  title.Cell("STEP", step, kDim).Cell("PROMPT/s", -9, kDim).Cell("OUT/s", drawn, kDim).Space().Cell("KV", 0, kDim);
  out.push_back(title.Text());
  for (const TopWorker& w : m.workers) {
    Line line(look);
    line.Cell(w.name, name, kBold).Cell(w.role, role).Cell(w.state, 10, StateColour(w.state));
    if (w.kv_blocks == 0) {
      const std::string words = w.phase.empty() ? w.detail : absl::StrFormat("%s %.0f %%", w.phase, 100 * w.progress);
      out.push_back(line.Cell(words, 0, kYellow).Text());
      continue;
    }
    line.Cell(StrCat(w.running), -4).Cell(StrCat(w.waiting), -5, w.waiting > 0 ? kYellow : nullptr);
    line.Cell(w.step_ms ? Ms(*w.step_ms) : "-", step).Cell(Rate(w.prompt_tokens_per_s), -9);
    line.Cell(Rate(w.generation_tokens_per_s), drawn).Space();
    const double blocks = static_cast<double>(w.kv_blocks), used = static_cast<double>(w.kv_used) / blocks;
    line.Bar({{used, kBlue},
              {static_cast<double>(w.kv_reserved) / blocks, kYellow},
              {static_cast<double>(w.kv_cached) / blocks, kDim}},
             std::clamp(look.columns - (narrow ? 76 : 80), 4, 40));
    out.push_back(line.Cell(absl::StrFormat("%5.1f %%", 100 * used), -8).Text());
  }
}

void AddLinks(const TopModel& m, const FrameLook& look, Lines& out) {
  constexpr size_t kMost = 8;
  if (m.links.empty()) return;
  out.push_back("");
  Line title(look);
  title.Cell("KV LINK", 35, kDim).Cell("TRANSPORT", 12, kDim).Cell("SELF-TEST", -12, kDim).Cell("NOW", -14, kDim);
  out.push_back(title.Text());
  for (size_t i = 0; i < std::min(kMost, m.links.size()); ++i) {
    const TopLink& l = m.links[i];
    Line line(look);
    line.Cell(Way(l.from, l.to, look), 35).Cell(l.transport, 12, kViolet);
    line.Cell(absl::StrFormat("%.2f GB/s", l.self_test_gigabytes_per_second), -12);
    out.push_back(line.Cell(l.bytes_per_s ? Bytes(*l.bytes_per_s) + "/s" : "-", -14).Text());
  }
  if (m.links.size() > kMost) out.push_back(StrCat("and ", m.links.size() - kMost, " more"));
}

void AddRequests(const TopModel& m, const FrameLook& look, size_t most, Lines& out) {
  const std::vector<TopRequest> requests = m.Requests();
  if (requests.empty()) return;
  out.push_back("");
  Line title(look);
  const int time = TimeWidth(look);
  title.Cell("UNDER WAY", 14, kDim).Cell("STAGE", 12, kDim).Cell("FOR", time, kDim).Cell("AGE", time, kDim);
  title.Cell("PROMPT", -8, kDim).Cell("OUT", -7, kDim).Space().Cell("WHERE", 0, kDim);
  out.push_back(title.Text());
  for (size_t i = 0; i < std::min(most, requests.size()); ++i) {
    const TopRequest& r = requests[i];
    Line line(look);
    line.Cell(ShortId(r.id, look.unicode), 14).Cell(r.stage, 12, r.stage == "waiting" ? kYellow : kGreen);
    line.Cell(Ms(std::max(0.0, m.time() - r.stage_since)), time).Cell(Ms(std::max(0.0, m.time() - r.began)), time);
    line.Cell(StrCat(r.prompt_tokens), -8).Cell(StrCat(r.tokens), -7).Space();
    out.push_back(line.Cell(Way(r.prefill_worker, r.worker, look)).Text());
  }
  const int64_t more =
      std::max<int64_t>(0, static_cast<int64_t>(requests.size()) - static_cast<int64_t>(most)) + m.requests_left_out;
  if (more > 0) out.push_back(Line(look).Cell(StrCat("and ", more, " more"), 0, kDim).Text());
}

void AddFinished(const TopModel& m, const FrameLook& look, size_t most, Lines& out) {
  if (m.finished().empty()) return;
  out.push_back("");
  Line title(look);
  const int time = TimeWidth(look), id = IsNarrow(look) ? 13 : 14, transfer = std::min(time, -9);
  title.Cell("FINISHED", id, kDim).Cell("END", 9, kDim).Cell("TOTAL", time, kDim).Cell("FIRST", time, kDim);
  title.Cell("QUEUE", time, kDim)
      .Cell("PREFILL", time, kDim)
      .Cell("TRANSFER", transfer, kDim)
      .Cell("DECODE", time, kDim);
  out.push_back(title.Space().Cell("TOKENS", 0, kDim).Text());
  size_t shown = 0;
  for (auto f = m.finished().rbegin(); f != m.finished().rend() && shown < most; ++f, ++shown) {
    const bool bad = f->reason == "error" || f->reason == "refused";
    Line line(look);
    line.Cell(ShortId(f->request.id, look.unicode), id)
        .Cell(f->reason, 9, bad ? kRed : nullptr)
        .Cell(Ms(f->total_ms), time);
    if (bad) {
      out.push_back(line.Space().Cell(f->error, 0, kRed).Text());
      continue;
    }
    const auto& s = f->stages_ms;
    line.Cell(Ms(f->first_token_ms), time).Cell(Ms(s[0] + s[3]), time).Cell(Ms(s[1]), time).Cell(Ms(s[2]), transfer);
    line.Cell(Ms(s[5]), time).Space();
    out.push_back(line.Cell(StrCat(f->request.prompt_tokens, "+", f->request.tokens)).Text());
  }
}

}  // namespace

std::vector<std::string> TopFrame(const TopModel& model, const FrameLook& look, const std::string& note) {
  Lines out;
  AddHead(model, look, note, out);
  AddWorkers(model, look, out);
  AddLinks(model, look, out);
  // What runs and what is over share what is left of the screen.
  const int left = look.rows > 0 ? look.rows - static_cast<int>(out.size()) - 5 : 20;
  const auto most = static_cast<size_t>(std::max(2, left / 2));
  AddRequests(model, look, most, out);
  AddFinished(model, look, most, out);
  if (look.rows > 0 && out.size() > static_cast<size_t>(look.rows)) out.resize(static_cast<size_t>(look.rows));
  return out;
}

}  // namespace baton::cli
