// One run of a command that measures several: which server, under which load, and what it showed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "load/faults.h"
#include "load/load_points.h"
#include "load/run.h"
#include "load/summary.h"

namespace baton::load {

struct Measured {
  std::string target;  ///< of --compare; empty: the only one
  std::string model;
  LoadPoint point;
  int round = 0;     ///< of --num-runs
  std::string date;  ///< "20261123-141500"
  RunResult run;
  Summary summary;
  std::vector<Dip> dips{};  ///< of the faults in `run`, where one can be seen
  std::optional<Verified> verified{};
};

}  // namespace baton::load
