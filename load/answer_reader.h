// Bytes of an answer's body → what it said. No I/O, no clock; one per answer.
#pragma once

#include <string>
#include <string_view>

#include "load/outcome.h"

namespace baton::load {

/// Cuts an event stream into events, whatever pieces its bytes come in. Lines end with LF or CRLF; comments and fields
/// other than data are skipped; several data lines of an event are joined by LF.
class EventLines {
 public:
  explicit EventLines(size_t most_bytes = 16 << 20) : most_bytes_(most_bytes) {}
  /// Calls `on_data` with every event that is whole. False: an event is longer than any should be.
  template <class OnData>
  bool Feed(std::string_view bytes, OnData&& on_data) {
    for (size_t end; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
      line_.append(bytes.substr(0, end));
      if (line_.ends_with('\r')) line_.pop_back();
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
    line_.append(bytes);
    return line_.size() + data_.size() <= most_bytes_;
  }

 private:
  const size_t most_bytes_;
  std::string line_, data_;
  bool has_data_ = false;
};

/// What one event added.
enum class Event : uint8_t { kNothing, kText, kMalformed };

/// Adds an event's data to the answer. kText: it brought text, or ended an answer that had none.
Event Apply(std::string_view data, Answer& answer);

}  // namespace baton::load
