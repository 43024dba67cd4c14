// The ids of a prompt, and what is derived from them once for all who share them.
#include "router/prompt_ids.h"

#include <gtest/gtest.h>

#include <cstring>
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
      bytes = AttachEntry(g, leg, false);
    }
    ASSERT_TRUE(up.ParseFromString(std::string(bytes)));
    EXPECT_EQ(up.SerializeAsString(), expected.SerializeAsString());
  }
}

TEST(PromptIds, AreShortWhereTheGreatestFits16Bits) {
  EXPECT_TRUE(PromptIds().Short().empty());
  for (const int32_t greatest : {1, 65'535, 65'536, -1}) {
    std::vector<int32_t> ids = Counted(1000);
    ids[500] = greatest;
    const PromptIds prompt = ids;
    const auto shorts = prompt.Short();
    if (greatest < 0 || greatest > 65'535) {
      EXPECT_TRUE(shorts.empty()) << greatest;
      continue;
    }
    EXPECT_EQ(std::vector<int32_t>(shorts.begin(), shorts.end()), ids);
    EXPECT_EQ(PromptIds(prompt).Short().data(), shorts.data()) << "made once for all copies";
  }
}

// What travels of a prompt of so many ids, and whether it is in 16 bits each; prompt and output together.
std::pair<bool, std::vector<int32_t>> Travels(std::vector<int32_t> prompt, const std::vector<int32_t>* output,
                                              bool takes_short_ids) {
  absl::Cord bytes;
  {
    TokenizedRequest g;
    g.prompt = std::move(prompt);
    AttachLeg leg;
    leg.leg_id = "r", leg.output = output;
    bytes = AttachEntry(g, leg, takes_short_ids);
  }
  v1::RelayUp up;
  EXPECT_TRUE(up.ParseFromString(std::string(bytes)));
  const v1::Attach& attach = up.attach(0);
  EXPECT_NE(attach.prompt_token_ids().empty(), attach.short_prompt_token_ids().empty()) << "one of them";
  std::vector<int32_t> ids(attach.prompt_token_ids().size() / 4);
  if (!ids.empty()) std::memcpy(ids.data(), attach.prompt_token_ids().data(), ids.size() * 4);
  for (size_t at = 0; at < attach.short_prompt_token_ids().size(); at += 2) {
    uint16_t id = 0;
    std::memcpy(&id, attach.short_prompt_token_ids().data() + at, 2);
    ids.push_back(id);
  }
  return {!attach.short_prompt_token_ids().empty(), ids};
}

TEST(PromptIds, OfALongPromptTravelIn16BitsWhereAllFitAndTheWorkerTakesIt) {
  const std::vector<int32_t> output{7, 65'535}, great_output{7, 65'536};
  const auto with = [](std::vector<int32_t> ids, const std::vector<int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  const std::vector<int32_t> few = Counted(1024), many = Counted(1025), far = Counted(60'000);
  std::vector<int32_t> great = many;
  great.back() = 65'536;
  using Travelled = std::pair<bool, std::vector<int32_t>>;
  EXPECT_EQ(Travels(many, nullptr, true), Travelled(true, many));
  EXPECT_EQ(Travels(far, &output, true), Travelled(true, with(far, output)));
  EXPECT_EQ(Travels(far, &great_output, true), Travelled(false, with(far, great_output)));
  EXPECT_EQ(Travels(great, nullptr, true), Travelled(false, great));
  EXPECT_EQ(Travels(few, &output, true), Travelled(false, with(few, output))) << "a few are copied as they are";
  EXPECT_EQ(Travels(far, &output, false), Travelled(false, with(far, output))) << "a worker of before";
}

}  // namespace
}  // namespace baton::router
