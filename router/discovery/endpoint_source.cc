#include "router/discovery/endpoint_source.h"

#include "common/log.h"
#include "common/str_cat.h"

namespace baton::router {

void SourceLog::Failed(const absl::Status& why, size_t known) {
  const std::string text(why.message());
  if (text == failed_) return;
  failed_ = text;
  LogWarning("{}: {}{}", name_, text, known == 0 ? "" : StrCat("; what was known stays, workers: ", known));
}

void SourceLog::LeftOut(const std::string& what) {
  if (!what.empty() && what != left_out_) LogWarning("{}: {}", name_, what);
  left_out_ = what;
}

void SourceLog::Knows(size_t workers) {
  if (spoke_ && failed_.empty() && workers == workers_) return;
  LogInfo("{}: workers: {}{}", name_, workers, failed_.empty() ? "" : ", it can be read again");
  spoke_ = true;
  failed_.clear();
  workers_ = workers;
}

}  // namespace baton::router
