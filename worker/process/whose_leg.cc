#include "worker/process/whose_leg.h"

#include "common/foreign_text.h"
#include "common/planted_bug.h"
#include "common/str_cat.h"

namespace baton::worker {

absl::Status WhyNotOurs(std::string_view greeted, std::string_view own) {
  if (greeted.empty() || greeted == own || PlantedBug("legs of another incarnation are taken")) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("worker ", own, " answers here, and the router greeted ", Printable(greeted),
             ": either it restarted or changed its role in between, or several workers stand behind one address (each "
             "needs its own, in Kubernetes by a headless service)"));
}

}  // namespace baton::worker
