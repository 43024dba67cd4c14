// Bytes of an answer's body → what it said. No I/O, no clock; one per answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "common/str_cat.h"
#include "load/outcome.h"

namespace baton::load {

/// Cuts an event stream into events, whatever pieces its bytes come in. Lines end with LF, CRLF or CR; a byte order
/// mark before them, comments and fields other than data are skipped; several data lines of an event are joined by LF.
class EventLines {
 public:
  explicit EventLines(size_t most_bytes = 16 << 20) : most_bytes_(most_bytes) {}
  /// Calls `on_data` with every event that is whole. False: an event is longer than any should be.
  template <class OnData>
  bool Feed(std::string_view bytes, OnData&& on_data) {
    while (!bytes.empty()) {
      if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
      size_t end = bytes.find('\n');
      if (const size_t cr = bytes.substr(0, end).find('\r'); cr != std::string_view::npos) end = cr;
      if (end == std::string_view::npos) break;
      line_.append(bytes.substr(0, end));
      after_cr_ = bytes[end] == '\r';
      bytes.remove_prefix(end + 1);
      EndLine(on_data);
    }
    line_.append(bytes);
    return line_.size() + data_.size() <= most_bytes_;
  }

  /// The stream has ended: what it left without the empty line behind it is an event, too.
  template <class OnData>
  void Finish(OnData&& on_data) {
    EndLine(on_data);
    EndLine(on_data);
  }

 private:
  template <class OnData>
  void EndLine(OnData&& on_data) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";
    if (std::exchange(first_line_, false) && line_.starts_with(kMark)) line_.erase(0, kMark.size());
    if (line_.empty() && has_data_) {
      on_data(std::string_view(data_));
      data_.clear();
      has_data_ = false;
    } else if (line_.starts_with("data:")) {
      if (has_data_) data_ += '\n';
      data_.append(line_, line_.size() > 5 && line_[5] == ' ' ? 6 : 5, std::string::npos);
      has_data_ = true;
    }
    line_.clear();
  }

  const size_t most_bytes_;
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, first_line_ = true;
};

/// Whether a body of this Content-Type is one of events.
inline bool IsEventStream(std::string_view content_type) {
  return absl::StartsWithIgnoreCase(AbslView(content_type), "text/event-stream");
}

/// Whether a body begins as one of events does, of whatever Content-Type; nullopt: that is not seen yet.
std::optional<bool> BeginsAsEvents(std::string_view body);

/// What one event added.
enum class Event : uint8_t { kNothing, kText, kMalformed };

/// Adds an event's data to the answer, unless that is done. kText: it brought text, or ended an answer that had none.
Event Apply(std::string_view data, Answer& answer);

}  // namespace baton::load
