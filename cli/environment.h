// Variables of this process that flags do not read: what a parent tells its children. Nobody changes the environment
// once there are threads.
#pragma once

#include <optional>
#include <string>

namespace baton::cli {

/// The value of a variable, if it is set.
std::optional<std::string> Environment(const char* name);
/// Takes a variable away from this process and its children to come. Before the first thread only.
void ForgetVariable(const std::string& name);
/// The `baton` process that started this one, if one did.
std::optional<int> ParentPid();

}  // namespace baton::cli
