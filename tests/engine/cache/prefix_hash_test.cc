#include "common/prefix_hash.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <set>

namespace baton {
namespace {

std::vector<int32_t> Count(int32_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(PrefixHash, SameKeyScopeAndTokensGiveTheSameChain) {
  const PrefixHasher a(HashKey{}), b(HashKey{});
  const auto chain = a.Chain(a.Root({"model", "salt", ""}), Count(100));
  EXPECT_EQ(chain.size(), 6u);
  EXPECT_EQ(chain, b.Chain(b.Root({"model", "salt", ""}), Count(100)));
}

TEST(PrefixHash, IsAFixedFunctionForRoutersAndWorkersOfAnyBuild) {
  const PrefixHasher h(HashKey::FromHex(std::string(64, 'a')).value());
  const PrefixHash unit = h.Next(h.Root({"m", "s", "l"}), Count(16));
  EXPECT_EQ(unit.lo, 7281335695340104957ull);
  EXPECT_EQ(unit.hi, 12957697575899041325ull);
}

TEST(PrefixHash, AnyChangedPartChangesTheHash) {
  HashKey other;
  other.bytes[31] = 1;
  const PrefixHasher h{HashKey{}}, g{other};
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto add = [&](const PrefixHash& p) { return seen.insert({p.lo, p.hi}).second; };
  EXPECT_TRUE(add(h.Root({"ab", "c", ""})));
  EXPECT_TRUE(add(h.Root({"a", "bc", ""})));  // the same bytes, cut elsewhere
  EXPECT_TRUE(add(h.Root({"abc", "", ""})));
  EXPECT_TRUE(add(h.Root({"ab", "", "c"})));
  EXPECT_TRUE(add(g.Root({"ab", "c", ""})));
  std::vector<int32_t> unit = Count(16);
  const PrefixHash root = h.Root({"m", "", ""});
  EXPECT_TRUE(add(h.Next(root, unit)));
  for (size_t i = 0; i < unit.size(); ++i) {
    unit[i] ^= 1;
    EXPECT_TRUE(add(h.Next(root, unit))) << i;
    unit[i] ^= 1;
  }
  EXPECT_TRUE(add(h.Next(h.Next(root, unit), unit)));
}

TEST(HashKey, FileWithWhiteSpaceGivesTheKeyAndABrokenOneSaysWhy) {
  const std::string path = ::testing::TempDir() + "/baton_hash_key";
  const HashKey key = HashKey::Random().value();
  EXPECT_NE(key, HashKey{});
  std::ofstream(path) << "  " << key.Hex() << "\n";
  EXPECT_EQ(HashKey::FromFile(path).value(), key);
  std::ofstream(path) << key.Hex().substr(1);
  EXPECT_EQ(HashKey::FromFile(path).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(path) << std::string(63, '0') << "g";
  EXPECT_EQ(HashKey::FromFile(path).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HashKey::FromFile(path + ".none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
