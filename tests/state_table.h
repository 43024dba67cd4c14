// A state machine's whole table as text, for tests: a line an event, a column a state, a cell what happens there.
//
//   Open  | →Bound Ack | = | Gone
//
// What a cell says is the test's business; "=" is by custom "nothing at all".
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace baton {

/// Event → its cells. Empty lines do not count.
inline std::map<std::string, std::vector<std::string>> ParseStateTable(const std::string& text) {
  const auto trim = [](std::string cell) {
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    return cell;
  };
  std::map<std::string, std::vector<std::string>> table;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    std::istringstream cells(line);
    std::string name;
    std::getline(cells, name, '|');
    auto& row = table[trim(name)];
    for (std::string cell; std::getline(cells, cell, '|');) row.push_back(trim(cell));
  }
  return table;
}

/// What one event did, as a cell: "→State" where the state changed, then the actions; "=" when neither.
inline std::string CellOf(const std::string& before, const std::string& after, const std::string& actions) {
  std::string cell = after == before ? "" : "→" + after;
  if (!cell.empty() && !actions.empty()) cell += " ";
  cell += actions;
  return cell.empty() ? "=" : cell;
}

/// Expects of every event in every state what its cell says, and that the table has no other rows. `events` are pairs
/// of a name and something that `outcome(event, state, apply)` knows how to apply. On
/// failure the actual table is printed.
template <class States, class Events, class Outcome>
void ExpectEveryCell(const std::string& text, const States& states, const Events& events, Outcome&& outcome) {
  const auto table = ParseStateTable(text);
  std::string actual;
  for (const auto& [event, apply] : events) {
    const auto row = table.find(event);
    const bool complete = row != table.end() && row->second.size() == std::size(states);
    EXPECT_TRUE(complete) << "no row of " << std::size(states) << " cells: " << event;
    actual += event;
    for (size_t s = 0; s < std::size(states); ++s) {
      const std::string cell = outcome(event, states[s], apply);
      actual += " | " + cell;
      if (complete) {
        EXPECT_EQ(row->second[s], cell) << event << " in " << states[s];
      }
    }
    actual += "\n";
  }
  EXPECT_EQ(table.size(), std::size(events));
  if (::testing::Test::HasFailure()) std::cout << actual;
}

}  // namespace baton
