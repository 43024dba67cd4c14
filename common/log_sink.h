// Where lines of the log go: standard output, each by one write. Those that cannot be written are counted.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace baton {

class LogSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// `payload`: what a text is written as.
  explicit LogSink(std::string (*payload)(std::string_view text));

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

  std::string LineOf(const spdlog::details::log_msg& message);
  std::string MissingLine();
  /// False: errno says why, and a part of it may be there.
  bool Write(std::string_view text);
  void Lose(int error);

  std::string (*const payload_)(std::string_view);
  const bool colors_;          ///< it is a terminal that has them
  bool torn_ = false;          ///< the last line that was begun has no end
  int64_t missing_ = 0;        ///< lines since the last one that was written
  std::string why_missing_{};  ///< the first of them
};

}  // namespace baton
