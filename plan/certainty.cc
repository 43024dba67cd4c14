#include "plan/certainty.h"

#include "absl/strings/str_format.h"
#include "plan/roofline.h"

namespace baton::plan {

std::vector<Machine> Corners(const Machine& machine) {
  std::vector<Machine> out = {machine};
  const Certainty& c = machine.certainty;
  for (const double prefill : {c.prefill.low, c.prefill.high}) {
    for (const double decode : {c.decode.low, c.decode.high}) {
      for (const double link : {c.link.low, c.link.high}) {
        Machine& corner = out.emplace_back(machine);
        corner.prefill_factor *= prefill;
        corner.decode_factor *= decode;
        corner.link_bytes_per_s /= link;
      }
    }
  }
  return out;
}

std::string RangeText(const Range& range, int digits) {
  const std::string low = absl::StrFormat("%.*f", digits, range.low),
                    high = absl::StrFormat("%.*f", digits, range.high);
  return low == high ? "" : absl::StrFormat(" (%s to %s)", low, high);
}

}  // namespace baton::plan
