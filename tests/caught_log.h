// CaughtLog: what this process logs while it lives.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace baton {

class CaughtLog {
 public:
  CaughtLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("caught", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_)));
  }
  ~CaughtLog() { spdlog::set_default_logger(before_); }
  CaughtLog(const CaughtLog&) = delete;
  int Count(const std::string& text) const {
    int found = 0;
    const std::string all = out_.str();
    for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    return found;
  }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace baton
