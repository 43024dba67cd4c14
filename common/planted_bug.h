// Places where a rule of a protocol can be broken on purpose, so that tests can prove that they would notice. In what
// is shipped the question is the constant false and costs nothing; tests compile the sources again with
// BATON_PLANTED_BUGS, and then the bug that the test names is in force.
#pragma once

#include <string_view>

namespace baton {

#ifdef BATON_PLANTED_BUGS
/// The bug in force; empty: none. Defined by the test.
std::string_view PlantedBugInForce();
/// Told that a planted place was reached while its bug is in force.
inline bool PlantedBug(std::string_view name) { return PlantedBugInForce() == name; }
#else
constexpr bool PlantedBug(std::string_view) { return false; }
#endif

}  // namespace baton
