#include "worker/process/met_routers.h"

#include <algorithm>

#include "common/foreign_text.h"
#include "common/str_cat.h"

namespace baton::worker {

std::string MetRouters::LineOf(std::string_view id, std::string_view version, std::string_view host) {
  const std::string name = Printable(id);
  std::lock_guard lock(mutex_);
  if (std::ranges::find(met_, name) != met_.end() || !lines_.May(host)) return "";
  met_.push_back(name);
  if (met_.size() > kMost) met_.pop_front();
  return StrCat("worker: met ", name.empty() ? "a router without a name" : Printable(id.substr(0, kShownBytes)),
                " of version ", version.empty() ? "unknown" : Printable(version), " at ", host);
}

}  // namespace baton::worker
