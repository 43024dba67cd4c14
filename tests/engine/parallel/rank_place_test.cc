// Which rank has what: every element of every tensor is somebody's, and refusals name both numbers.
#include "engine/parallel/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/config/config_reader.h"
#include "engine/model/kv_groups.h"
#include "engine/model/micro_batch.h"
#include "engine/model/weight_parts.h"
#include "engine/parallel/tree_sum.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

ModelConfig Config(int heads = 8, int kv_heads = 4) {
  ModelConfig c = ReadHfConfig("tests/data/tiny-llama").value().config;
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  return c;
}
std::string Refusal(const ModelConfig& config, RankPlace place) { return CheckPlace(config, place).ToString(); }

TEST(CheckPlace, RefusesWithBothNumbers) {
  EXPECT_TRUE(CheckPlace(Config(), {.tensor_size = 4, .stages = 3, .reduction_width = 4}).ok());
  EXPECT_TRUE(CheckPlace(Config(8, 2), {.tensor_size = 8}).ok()) << "KV heads may be kept by several ranks";
  EXPECT_THAT(Refusal(Config(9, 3), {.tensor_size = 2}),
              HasSubstr("--tensor-parallel-size 2 does not divide 9 attention heads"));
  EXPECT_THAT(Refusal(Config(12, 3), {.tensor_size = 2}), HasSubstr("2 neither divides 3 KV heads"));
  EXPECT_THAT(Refusal(Config(), {.tensor_size = 3}), HasSubstr("--tensor-parallel-size 3 is not a power of two"));
  EXPECT_THAT(Refusal(Config(), {.reduction_width = 6}), HasSubstr("--reduction-width 6 is not a power of two"));
  EXPECT_THAT(Refusal(Config(), {.stages = 4}), HasSubstr("--pipeline-parallel-size 4 is not in 1 … 3"));
  EXPECT_THAT(Refusal(Config(), {.reduction_width = 512}),
              HasSubstr("--reduction-width 512 does not divide 256 inner"));
}

// Marks what each rank reads; a cut tensor is read once in all, a whole one by every rank of the stage.
TEST(WeightParts, RanksTileEveryTensor) {
  for (const auto& [tp, stages, kv_heads] :
       std::vector<std::tuple<int, int, int>>{{1, 1, 4}, {2, 1, 4}, {4, 3, 4}, {8, 2, 2}}) {
    const ModelConfig config = Config(8, kv_heads);
    std::map<std::string, std::vector<int>> read;
    for (int rank = 0; rank < tp * stages; ++rank) {
      for (const WeightPart& part : PartsOf(config, RankPlace::Of(rank, tp, stages, 1))) {
        std::vector<int>& marks = read[HfName(config, part.rule)];
        marks.resize(static_cast<size_t>(part.rule.elements()));
        for (int64_t r = 0; r < part.rows; ++r) {
          for (int64_t c = 0; c < part.columns; ++c) {
            ++marks[static_cast<size_t>((part.first_row + r) * part.rule.columns() + part.first_column + c)];
          }
        }
      }
    }
    for (const WeightRule& rule : WeightRules(config)) {
      const bool whole = rule.shape.size() == 1;
      const bool kv = rule.weight == Weight::kKey || rule.weight == Weight::kValue;
      const int times = whole ? tp : kv ? std::max(1, tp / kv_heads) : 1;
      const std::vector<int>& marks = read[HfName(config, rule)];
      EXPECT_TRUE(!marks.empty() && std::ranges::all_of(marks, [&](int n) { return n == times; }))
          << HfName(config, rule) << " with TP " << tp << ", PP " << stages << ", expected " << times;
    }
  }
}

TEST(WeightParts, ReadingAPartIsCuttingTheWhole) {
  const ModelConfig config = Config();
  const auto source = MakeDummyWeights(config, 3);
  const WeightRule rule = RuleOf(config, Weight::kDown, 1);
  std::vector<float> whole(static_cast<size_t>(rule.elements()));
  ASSERT_TRUE(source->Read(rule, DType::kF32, whole.data()).ok());
  for (int rank = 0; rank < 4; ++rank) {
    const WeightPart part = PartOf(config, RankPlace::Of(rank, 4, 1, 8), Weight::kDown, 1);
    for (int leaf = 0; leaf < 2; ++leaf) {
      const WeightPart columns = LeafOf(part, leaf, 2);
      std::vector<float> got(static_cast<size_t>(columns.elements()));
      ASSERT_TRUE(source->Read(columns, DType::kF32, got.data(), 3).ok());
      for (int64_t r = 0; r < columns.rows; ++r) {
        for (int64_t c = 0; c < columns.columns; ++c) {
          ASSERT_EQ(got[static_cast<size_t>(r * columns.columns + c)],
                    whole[static_cast<size_t>(r * rule.columns() + (rank * 2 + leaf) * rule.columns() / 8 + c)]);
        }
      }
    }
  }
}

TEST(RankKvLayout, KeepsGroupsAndCutsHeadsAndLayers) {
  const ModelConfig config = Config();
  const KvLayout whole = MakeKvLayout(config, DType::kF32, 16).value();
  const KvLayout layout = RankKvLayout(whole, ShapeOf(config, RankPlace::Of(3, 2, 2, 1)));
  ASSERT_EQ(layout.groups.size(), whole.groups.size());
  EXPECT_THAT(layout.groups[0].layers, testing::ElementsAre(1, 2));
  EXPECT_EQ(layout.groups[0].planes[0].heads, 2);
}

// Every row once, with its sequence's blocks and what comes before it as context.
TEST(MicroBatch, PartsTileTheRows) {
  const std::vector<int32_t> row_start = {0, 3, 4, 9}, context = {5, 0, 32}, tables = {1, 2, 3, 4, 5, 6},
                             wanted = {2, 3, 8};
  ForwardBatch batch;
  batch.groups.push_back({row_start, context, tables, 2});
  for (int parts = 1; parts <= 9; ++parts) {
    std::vector<std::pair<int, int32_t>> rows;  // (first block, position) of each
    std::vector<int32_t> seen;
    int64_t first = 0;
    for (const auto& part : SplitRows(batch, wanted, parts)) {
      EXPECT_EQ(part->first, first);
      EXPECT_EQ(part->wanted_before, static_cast<int64_t>(seen.size()));
      const kernels::RaggedBatch& group = part->groups[0];
      for (int s = 0; s < group.sequences(); ++s) {
        for (int32_t r = group.row_start[s]; r < group.row_start[s + 1]; ++r) {
          rows.emplace_back(group.block_tables[s * group.table_stride], group.context[s] + r - group.row_start[s]);
        }
      }
      for (const int32_t row : part->wanted) seen.push_back(row + static_cast<int32_t>(part->first));
      first += part->rows;
    }
    const std::vector<std::pair<int, int32_t>> all = {{1, 5},  {1, 6},  {1, 7},  {3, 0}, {5, 32},
                                                      {5, 33}, {5, 34}, {5, 35}, {5, 36}};
    EXPECT_EQ(rows, all) << parts;
    EXPECT_EQ(seen, wanted) << parts;
  }
}

TEST(TreeSum, IsTheTreeOverItsAlignedSubtrees) {
  std::vector<std::vector<float>> parts;
  for (int p = 0; p < 8; ++p)
    parts.push_back({1.0f / static_cast<float>(3 * p + 1), -1e8f / static_cast<float>(p + 1)});
  std::vector<const float*> all, low, high;
  for (int p = 0; p < 8; ++p) all.push_back(parts[p].data()), (p < 4 ? low : high).push_back(parts[p].data());
  std::vector<float> whole(2), left(2), right(2), joined(2);
  TreeSum(all, 2, whole.data());
  TreeSum(low, 2, left.data());
  TreeSum(high, 2, right.data());
  const std::vector<const float*> two = {left.data(), right.data()};
  TreeSum(two, 2, joined.data());
  EXPECT_EQ(joined, whole);
}

}  // namespace
}  // namespace baton::engine
