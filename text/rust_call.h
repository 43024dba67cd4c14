// Glue for calls of the C ABI (text/rust/baton_text.h): views in, errors and buffers out.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "text/rust/baton_text.h"

namespace baton {

inline bt_str BtStr(std::string_view text) { return {text.data(), text.size()}; }

/// The string in `buf`, which is freed.
inline std::string TakeBuf(bt_buf buf) {
  std::string text(reinterpret_cast<const char*>(buf.ptr), buf.len);
  bt_buf_free(buf);
  return text;
}

/// The status of a call that got `error`, with `prefix` (a path and ": ") before its message.
inline absl::Status TakeError(bt_error& error, std::string_view prefix) {
  if (error.code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(error.code), std::string(prefix) + TakeBuf(error.message));
}

/// The same where a model's file is at fault: what the message quotes of it is made printable, and cut.
inline absl::Status TakeFileError(bt_error& error, std::string_view prefix) {
  constexpr size_t kMaxBytes = 500;
  const absl::Status status = TakeError(error, "");
  return absl::Status(status.code(), std::string(prefix) + Printable(View(status.message()), kMaxBytes));
}

}  // namespace baton
