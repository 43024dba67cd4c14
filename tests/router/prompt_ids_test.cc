// The ids of a prompt, and what is derived from them once for all who share them.
#include "router/prompt_ids.h"

#include <gtest/gtest.h>

#include <numeric>

#include "router/fleet/attach_codec.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

std::vector<int32_t> Counted(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

std::vector<uint64_t> Chain(const PrefixHasher& hasher, const PrefixScope& scope, const std::vector<int32_t>& ids) {
  std::vector<uint64_t> keys;
  for (const PrefixHash& hash : hasher.Chain(hasher.Root(scope), ids)) keys.push_back(hash.lo);
  return keys;
}

TEST(PromptIds, AreTheVectorTheyWereMadeOf) {
  const PromptIds none, empty = std::vector<int32_t>(), some{5, 6};
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none, empty);
  EXPECT_EQ(some, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(some[1], 6);
  const PromptIds copy = some;
  EXPECT_EQ(copy.data(), some.data()) << "a copy shares them";
}

TEST(PromptIds, TheGreatestIsFoundWhereverItStands) {
  EXPECT_EQ(PromptIds().greatest(), 0u);
  for (const int32_t count : {1, 63, 64, 65, 128, 200}) {
    for (int32_t at = 0; at < count; ++at) {
      std::vector<int32_t> ids(static_cast<size_t>(count), 3);
      ids[static_cast<size_t>(at)] = 70'000;
      EXPECT_EQ(PromptIds(ids).greatest(), 70'000u) << at << " of " << count;
      ids[static_cast<size_t>(at)] = -1;
      EXPECT_EQ(PromptIds(ids).greatest(), UINT32_MAX) << at << " of " << count;
    }
  }
}

TEST(PromptIds, KeysAreThoseOfTheScopeAskedFor) {
  const PrefixHasher one{HashKey::FromHex(std::string(64, 'a')).value()}, two{HashKey{}};
  const PrefixScope plain{"digest", "", ""}, salted{"digest", "tenant", ""}, other{"other", "", ""};
  const PromptIds ids = Counted(16 * 5 + 3);
  for (int round = 0; round < 2; ++round) {
    for (const PrefixScope& scope : {plain, salted, other, plain}) {
      for (const PrefixHasher* hasher : {&one, &two}) {
        const UnitKeys keys = ids.KeysIn(scope, *hasher);
        ASSERT_EQ(keys->size(), 5u);
        EXPECT_EQ(*keys, Chain(*hasher, scope, ids));
      }
    }
  }
  const PromptIds copy = ids;
  EXPECT_EQ(copy.KeysIn(plain, one), ids.KeysIn(plain, one)) << "computed once for all copies";
  EXPECT_TRUE(PromptIds().KeysIn(plain, one)->empty());
}

TEST(PromptIds, TheBytesToAWorkerOutliveTheRequest) {
  for (const int32_t count : {3, 100'000}) {
    absl::Cord bytes;
    v1::RelayUp expected, up;
    {
      TokenizedRequest g;
      g.prompt = Counted(count);
      const std::vector<int32_t> output{7, 8};
      AttachLeg leg;
      leg.leg_id = "r", leg.output = &output;
      *expected.add_attach() = EncodeAttach(g, leg);
      bytes = AttachEntry(g, leg);
    }
    ASSERT_TRUE(up.ParseFromString(std::string(bytes)));
    EXPECT_EQ(up.SerializeAsString(), expected.SerializeAsString());
  }
}

}  // namespace
}  // namespace baton::router
