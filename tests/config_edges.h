// The edges of a config's fields, as tables: what each field must still take, and what it must refuse.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/str_cat.h"

namespace baton::test {

template <class Config, class T>
struct Edge {
  std::string flag;
  T Config::* member;
  std::vector<T> taken, refused;
};

/// Every value of every row, one at a time, in a config that is otherwise `good`. `tested` gains the rows' flags.
template <class Config, class T>
void CheckEdges(const Config& good, const std::vector<Edge<Config, T>>& edges, std::set<std::string>& tested) {
  for (const auto& [flag, member, taken, refused] : edges) {
    tested.insert(flag);
    for (const T& value : taken) {
      Config c = good;
      c.*member = value;
      EXPECT_TRUE(c.Validate().ok()) << flag << " " << value << ": " << c.Validate();
    }
    for (const T& value : refused) {
      Config c = good;
      c.*member = value;
      const absl::Status status = c.Validate();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << flag << " " << value;
      EXPECT_NE(status.message().find(StrCat("--", flag)), absl::string_view::npos) << value << ": " << status;
    }
  }
}

}  // namespace baton::test
