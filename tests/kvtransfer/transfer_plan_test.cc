#include "kvtransfer/transfer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUntouched = ~0ull;

/// Brute force: the name of one element of the whole model's KV.
uint64_t NameOf(int group, int layer, int plane, int position, int head, int element) {
  uint64_t name = static_cast<uint64_t>(group);
  for (int v : {layer, plane, position, head, element}) name = name * 4096 + static_cast<uint64_t>(v);
  return name;
}

/// One rank's KV of one sequence, element by element: (group, layer, plane, table block) -> [tokens, heads, dim].
using RankMemory = std::map<std::array<int, 4>, std::vector<uint64_t>>;

RankMemory MakeMemory(const KvSide& side, int rank, int tokens, bool filled) {
  RankMemory memory;
  for (int g = 0; g < static_cast<int>(side.layout.groups.size()); ++g) {
    const KvGroup& group = side.layout.groups[static_cast<size_t>(g)];
    for (int layer : group.layers) {
      if (layer < side.LayersOf(rank).begin || layer >= side.LayersOf(rank).end) continue;
      for (int p = 0; p < static_cast<int>(group.planes.size()); ++p) {
        const KvPlane& plane = group.planes[static_cast<size_t>(p)];
        const IntRange heads = side.HeadsOf(rank, plane);
        const int block = group.tokens_per_block;
        for (int b = 0; b * block < tokens; ++b) {
          auto& words = memory[{g, layer, p, b}];
          for (int t = 0; t < block; ++t)
            for (int h = heads.begin; h < heads.end; ++h)
              for (int e = 0; e < plane.dim; ++e)
                words.push_back(filled ? NameOf(g, layer, p, b * block + t, h, e) : kUntouched);
        }
      }
    }
  }
  return memory;
}

/// What every element of a target rank must be after the transfer.
void ExpectPlaced(const KvSide& target, int rank, IntRange tokens, const RankMemory& memory) {
  for (const auto& [key, words] : memory) {
    const auto [g, layer, p, b] = key;
    const KvGroup& group = target.layout.groups[static_cast<size_t>(g)];
    const KvPlane& plane = group.planes[static_cast<size_t>(p)];
    const IntRange heads = target.HeadsOf(rank, plane), seen = VisibleTokens(group, tokens);
    size_t i = 0;
    for (int t = 0; t < group.tokens_per_block; ++t) {
      const int position = b * group.tokens_per_block + t;
      const bool travels = position >= seen.begin && position < seen.end;
      for (int h = heads.begin; h < heads.end; ++h)
        for (int e = 0; e < plane.dim; ++e, ++i)
          ASSERT_EQ(words[i], travels ? NameOf(g, layer, p, position, h, e) : kUntouched)
              << "group " << g << " layer " << layer << " plane " << p << " position " << position << " head " << h;
    }
  }
}

size_t ElementOf(const KvRun& run, int token, int head, int e) {
  const int element = ((run.token_in_block + token) * run.local_heads + run.local_head + head) * run.dim + e;
  return static_cast<size_t>(element);
}

/// Gathers, ships and scatters one segment; an element written twice fails.
void Move(const TransferPlan& plan, const LanePlan& lane, int segment, const RankMemory& from, RankMemory& to) {
  std::map<std::pair<int, int64_t>, uint64_t> payload;  // (plane, element) -> name
  plan.ForEachRun(lane, segment, TransferEnd::kSource, [&](const KvRun& run) {
    int64_t at = run.payload_element;
    for (int t = 0; t < run.tokens; ++t)
      for (int h = 0; h < run.heads; ++h)
        for (int e = 0; e < run.dim; ++e)
          payload[{run.plane, at++}] =
              from.at({run.group, run.layer, run.plane, run.table_block}).at(ElementOf(run, t, h, e));
  });
  size_t used = 0;
  plan.ForEachRun(lane, segment, TransferEnd::kTarget, [&](const KvRun& run) {
    int64_t at = run.payload_element;
    for (int t = 0; t < run.tokens; ++t)
      for (int h = 0; h < run.heads; ++h)
        for (int e = 0; e < run.dim; ++e, ++used) {
          uint64_t& word = to.at({run.group, run.layer, run.plane, run.table_block}).at(ElementOf(run, t, h, e));
          ASSERT_EQ(word, kUntouched) << "an element travelled twice";
          word = payload.at({run.plane, at++});
        }
  });
  ASSERT_EQ(used, payload.size());
}

using Random = std::mt19937;
int Pick(Random& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
template <class T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[Pick(random, 0, static_cast<int>(values.size()) - 1)];
}

KvLayout RandomLayout(Random& random, int layers) {
  KvLayout layout;
  const int groups = Pick(random, 1, std::min(2, layers));
  for (int g = 0; g < groups; ++g) {
    KvGroup group;
    for (int layer = g; layer < layers; layer += groups) group.layers.push_back(layer);
    if (Pick(random, 0, 2) == 0) group.kind = KvGroupKind::kWindow, group.window_tokens = Pick(random, 1, 70);
    const int heads = OneOf(random, {1, 2, 4}), dim = OneOf(random, {8, 16});
    if (Pick(random, 0, 3) == 0) {
      group.planes = {{KvPlane::Name::kLatent, DType::kF32, 1, dim}};
    } else {
      group.planes = {{KvPlane::Name::kK, DType::kBF16, heads, dim}, {KvPlane::Name::kV, DType::kBF16, heads, dim}};
      if (Pick(random, 0, 2) == 0) group.planes.push_back({KvPlane::Name::kScale, DType::kF32, heads, 8});
    }
    layout.groups.push_back(group);
  }
  return layout;
}

KvSide RandomSide(Random& random, KvLayout layout, int layers) {
  for (KvGroup& group : layout.groups) {
    group.tokens_per_block = OneOf(random, {16, 32, 64});
    for (KvPlane& plane : group.planes) plane.dtype = OneOf(random, {DType::kF32, DType::kBF16, DType::kF8E4M3});
  }
  std::set<int> cuts = {0, layers};
  for (int i = Pick(random, 0, 2); i > 0; --i) cuts.insert(Pick(random, 0, layers));
  return {layout, OneOf(random, {1, 2, 4, 8}), {cuts.begin(), cuts.end()}};
}

TEST(TransferPlan, PlacesEveryElementOnceWhereABruteForceCopyDoes) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int layers = Pick(random, 1, 4);
    const KvLayout layout = RandomLayout(random, layers);
    const KvSide source = RandomSide(random, layout, layers), target = RandomSide(random, layout, layers);
    const int end = Pick(random, 1, 90), begin = Pick(random, 0, end);
    const auto plan = TransferPlan::Make(source, target, {begin, end}, 16 * Pick(random, 1, 4));
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<RankMemory> from, to;
    for (int r = 0; r < source.ranks(); ++r) from.push_back(MakeMemory(source, r, end, true));
    for (int r = 0; r < target.ranks(); ++r) to.push_back(MakeMemory(target, r, end, false));
    for (const LanePlan& lane : plan->lanes()) {
      for (int s = 0; s < lane.segments; ++s) {
        Move(*plan, lane, s, from[static_cast<size_t>(lane.source_rank)], to[static_cast<size_t>(lane.target_rank)]);
        if (HasFatalFailure()) return;
      }
    }
    for (int r = 0; r < target.ranks(); ++r) ExpectPlaced(target, r, {begin, end}, to[static_cast<size_t>(r)]);
    if (HasFatalFailure()) return;
  }
}

KvSide Simple(int tp) {
  KvGroup group{{0, 1},
                KvGroupKind::kPaged,
                0,
                {{KvPlane::Name::kK, DType::kBF16, 8, 4}, {KvPlane::Name::kV, DType::kBF16, 8, 4}},
                16};
  return {{{group}}, tp, {0, 2}};
}

// The next token is at `end`; a window of 32 that ends with it begins at end - 31.
TEST(TransferPlan, OfAWindowTheUnitsTravelThatTheNextTokenSees) {
  KvGroup group;
  group.kind = KvGroupKind::kWindow, group.window_tokens = 32;
  const auto first = [&](int end) { return VisibleTokens(group, {0, end}).begin; };
  EXPECT_EQ(first(31), 0);
  EXPECT_EQ(first(46), 0) << "from position 15 on: the first unit still";
  EXPECT_EQ(first(47), 16);
  EXPECT_EQ(first(62), 16);
  EXPECT_EQ(first(63), 32);
  EXPECT_EQ(VisibleTokens(group, {48, 63}).begin, 48) << "what was asked for is not extended";
  EXPECT_EQ(VisibleTokens(group, {0, 63}).end, 63);
  group.kind = KvGroupKind::kPaged;
  EXPECT_EQ(first(63), 0);
}

TEST(TransferPlan, SegmentBytesAreThePayloadsOfAllPlanes) {
  const auto plan = TransferPlan::Make(Simple(2), Simple(1), {5, 40}, 32);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->lanes().size(), 2u);
  const LanePlan& lane = plan->lanes()[1];
  EXPECT_EQ(lane.segments, 4);  // 2 layers, positions [5, 32) and [32, 40)
  EXPECT_EQ(plan->SegmentBytes(lane, 0), 27 * 4 * 4 * 2 * 2);
  EXPECT_EQ(plan->SegmentBytes(lane, 3), 8 * 4 * 4 * 2 * 2);
  EXPECT_EQ(plan->SegmentAt(lane, 3).layer, 1);
  const auto later = TransferPlan::Make(Simple(1), Simple(1), {40, 70}, 32);
  EXPECT_EQ(later->lanes()[0].segments, 4) << "none of the piece [0, 32), of which nothing travels";
}

TEST(TransferPlan, DigestIsEqualOnlyForEqualPlans) {
  const uint64_t base = TransferPlan::Make(Simple(2), Simple(1), {0, 40}, 32)->digest();
  EXPECT_EQ(TransferPlan::Make(Simple(2), Simple(1), {0, 40}, 32)->digest(), base);
  EXPECT_NE(TransferPlan::Make(Simple(1), Simple(2), {0, 40}, 32)->digest(), base);
  EXPECT_NE(TransferPlan::Make(Simple(2), Simple(1), {0, 41}, 32)->digest(), base);
  EXPECT_NE(TransferPlan::Make(Simple(2), Simple(1), {0, 40}, 16)->digest(), base);
  KvSide f32 = Simple(2);
  f32.layout.groups[0].planes[0].dtype = DType::kF32;
  EXPECT_NE(TransferPlan::Make(f32, Simple(1), {0, 40}, 32)->digest(), base);
}

// Both sides compute it from what each was told: whatever they were told otherwise must show.
TEST(TransferPlan, ADigestIsOfEverythingThatEitherSideIs) {
  std::set<uint64_t> digests;
  int plans = 0;
  const auto add = [&](auto&& change_source, auto&& change_target) {
    KvSide source = Simple(2), target = Simple(2);
    change_source(source), change_target(target);
    const auto plan = TransferPlan::Make(source, target, {0, 40}, 32);
    ASSERT_TRUE(plan.ok()) << plan.status();
    digests.insert(plan->digest()), ++plans;
  };
  const auto same = [](KvSide&) {};
  add(same, same);
  const std::vector<std::function<void(KvSide&)>> of_one = {
      [](KvSide& s) { s.tensor_parallel_size = 4; },
      [](KvSide& s) { s.stage_layers = {0, 1, 2}; },
      [](KvSide& s) { s.layout.groups[0].tokens_per_block = 32; },
      [](KvSide& s) { s.layout.groups[0].planes[1].dtype = DType::kF16; },
  };
  for (const auto& change : of_one) add(change, same), add(same, change), add(change, change);
  const std::vector<std::function<void(KvSide&)>> of_both = {
      [](KvSide& s) { s.stage_layers = {0, 3}; },
      [](KvSide& s) { s.layout.groups[0].layers = {1, 0}; },
      [](KvSide& s) { s.layout.groups[0].layers = {0}; },
      [](KvSide& s) { s.layout.groups[0].kind = KvGroupKind::kWindow, s.layout.groups[0].window_tokens = 64; },
      [](KvSide& s) { s.layout.groups[0].kind = KvGroupKind::kWindow, s.layout.groups[0].window_tokens = 65; },
      [](KvSide& s) { s.layout.groups[0].planes[1].heads = 4; },
      [](KvSide& s) { s.layout.groups[0].planes[1].dim = 8; },
      [](KvSide& s) { s.layout.groups[0].planes[1].name = KvPlane::Name::kScale; },
      [](KvSide& s) { s.layout.groups[0].planes.pop_back(); },
      [](KvSide& s) { s.layout.groups.push_back(s.layout.groups[0]); },
  };
  for (const auto& change : of_both) add(change, change);
  EXPECT_EQ(digests.size(), static_cast<size_t>(plans));
}

TEST(TransferPlan, ReplicatedSourcesShareTheTargets) {
  KvSide source = Simple(4), target = Simple(4);
  for (KvSide* side : {&source, &target})
    for (KvPlane& p : side->layout.groups[0].planes) p.heads = 1;
  const auto plan = TransferPlan::Make(source, target, {0, 16}, 16);
  ASSERT_TRUE(plan.ok());
  std::set<int> senders;
  for (const LanePlan& lane : plan->lanes()) senders.insert(lane.source_rank);
  EXPECT_EQ(plan->lanes().size(), 4u);
  EXPECT_EQ(senders.size(), 4u);
}

TEST(TransferPlan, NothingToSendHasNoLanes) {
  EXPECT_TRUE(TransferPlan::Make(Simple(1), Simple(1), {32, 32}, 16)->lanes().empty());
}

std::string ErrorOf(const KvSide& source, const KvSide& target, int piece = 16) {
  return std::string(TransferPlan::Make(source, target, {0, 16}, piece).status().message());
}

// The work of a plan grows with the ranks of both sides, and a peer says how many it has.
TEST(TransferPlan, MoreRanksThanAnyClusterHasAreRefusedAtOnce) {
  KvSide many = Simple(1024);
  EXPECT_THAT(TransferPlan::Make(many, Simple(128), {0, 32}, 32).status().ToString(),
              HasSubstr("from 1024 ranks to 128: at most 65536 pairs"));
  many.tensor_parallel_size = 1 << 22;
  EXPECT_THAT(CheckSide(many).ToString(), HasSubstr("tensor parallel size 4194304, 1 stages: at most 1024 and 1024"));
  KvSide deep = Simple(1);
  for (int layer = 1; layer <= 1025; ++layer) deep.stage_layers.push_back(layer);
  EXPECT_THAT(CheckSide(deep).ToString(), HasSubstr("stages: at most 1024 and 1024"));
}

TEST(TransferPlan, MoreSegmentsThanCountsHoldAreRefusedAtOnce) {
  KvSide side = Simple(1);
  side.layout.groups[0].layers.clear();
  for (int layer = 0; layer < 4096; ++layer) side.layout.groups[0].layers.push_back(layer);
  side.stage_layers = {0, 4096};
  EXPECT_THAT(TransferPlan::Make(side, side, {0, 1 << 24}, 16).status().ToString(),
              HasSubstr("4096 layers of 16777216 tokens in pieces of 16: 4294975488 segments, at most 268435456"));
  EXPECT_THAT(TransferPlan::Make(side, side, {0, 1 << 24}, 256).status().ToString(),
              HasSubstr("268443648 segments, at most 268435456"));
  EXPECT_FALSE(TransferPlan::Make(side, side, {0, 65535 * 16}, 16).ok());
  EXPECT_TRUE(TransferPlan::Make(side, side, {0, 65534 * 16}, 16).ok()) << "as many as may be";
  EXPECT_TRUE(TransferPlan::Make(side, side, {0, 1 << 24}, 512).ok());
  KvSide wide = side;
  wide.tensor_parallel_size = 256;
  EXPECT_THAT(TransferPlan::Make(wide, wide, {0, 32}, 32).status().ToString(),
              HasSubstr("4096 layers between 65536 pairs of ranks: at most 67108864"));
  wide.tensor_parallel_size = 128;
  EXPECT_TRUE(TransferPlan::Make(wide, wide, {0, 32}, 32).ok()) << "a quarter of them: as many as may be";
}

TEST(TransferPlan, AsManyStagesAsMayBeAreTaken) {
  KvSide most = Simple(1);
  most.stage_layers.resize(kMaxStages + 1);
  std::iota(most.stage_layers.begin(), most.stage_layers.end(), 0);
  EXPECT_EQ(CheckSide(most), absl::OkStatus());
  most.stage_layers.push_back(kMaxStages + 1);
  EXPECT_THAT(CheckSide(most).message(), HasSubstr("1025 stages: at most 1024 and 1024"));
}

TEST(TransferPlan, LayoutsOfAnotherMeaningAreRefusedWithEveryDifference) {
  KvSide other = Simple(1);
  other.layout.groups[0].window_tokens = 64;
  other.layout.groups[0].layers = {0};
  EXPECT_THAT(ErrorOf(Simple(1), other), HasSubstr("groups[0].window_tokens: source 0, target 64; "
                                                   "groups[0].layers: source 2, target 1"));
}

TEST(TransferPlan, RefusalsNameBothValues) {
  KvSide other = Simple(1);
  other.layout.groups[0].planes[1].dim = 8;
  other.layout.groups[0].planes[0].heads = 4;
  EXPECT_THAT(ErrorOf(Simple(1), other), HasSubstr("groups[0].planes[0].heads: source 8, target 4"));
  EXPECT_THAT(ErrorOf(Simple(1), other), HasSubstr("groups[0].planes[1].dim: source 4, target 8"));
  EXPECT_THAT(ErrorOf(Simple(3), Simple(1)), HasSubstr("tensor parallel size 3 neither divides 8 KV heads"));
  EXPECT_THAT(ErrorOf(Simple(12), Simple(1)), HasSubstr("size 12 neither divides 8 KV heads nor is a multiple"));
  EXPECT_THAT(ErrorOf(Simple(1), Simple(12)), HasSubstr("size 12 neither divides 8 KV heads nor is a multiple"));
  EXPECT_THAT(ErrorOf(Simple(1), Simple(1), 24), HasSubstr("24 tokens is not a multiple of 16"));
  KvSide odd = Simple(1);
  odd.layout.groups[0].planes[1].dim = 5;
  EXPECT_THAT(ErrorOf(Simple(1), odd), HasSubstr("a KV vector of 5 elements of bfloat16 takes 10 bytes"));
  odd.layout.groups[0].planes[1].dim = 6;
  EXPECT_THAT(ErrorOf(Simple(1), odd), HasSubstr("a KV vector of 6 elements of bfloat16 takes 12 bytes"));
  KvSide block = Simple(1);
  block.layout.groups[0].tokens_per_block = 24;
  EXPECT_THAT(ErrorOf(Simple(1), block), HasSubstr("a block of 24 tokens"));
  KvSide stages = Simple(1);
  stages.stage_layers = {0, 2, 2};
  EXPECT_THAT(ErrorOf(stages, Simple(1)), HasSubstr("stage 1 begins at layer 2 and ends at 2"));
  stages.stage_layers = {0, 1};
  EXPECT_THAT(ErrorOf(stages, Simple(1)), HasSubstr("layer 1 lies outside 1 layers"));
}

}  // namespace
}  // namespace baton
