// One picture of `baton top`: a model in, lines of text out. No clock, no terminal.
#pragma once

#include <string>
#include <vector>

#include "cli/top_model.h"

namespace baton::cli {

struct FrameLook {
  int columns = 100, rows = 0;  ///< rows 0: as many as it takes
  bool colour = false;          ///< escape codes
  bool unicode = true;          ///< bars of blocks instead of "#"
};

/// Lines without their ends, none longer than `columns` on the screen, at most `rows`. `note`: stands in the first
/// line, say that the connection is lost.
std::vector<std::string> TopFrame(const TopModel& model, const FrameLook& look, const std::string& note = "");

}  // namespace baton::cli
