// The part of each tensor that a rank reads: a box of rows and columns. LoadWeights packs these parts; a memory plan
// counts them before.
#pragma once

#include <vector>

#include "engine/model/weight_source.h"
#include "engine/parallel/rank_place.h"

namespace baton::engine {

/// The rank's part of a tensor: rows of what is cut by outputs, columns of what is cut by inputs, else all of it.
WeightPart PartOf(const ModelConfig& config, const RankPlace& place, Weight weight, int layer = -1);
/// Leaf `leaf` of a part that is cut by inputs: its share of the columns.
WeightPart LeafOf(const WeightPart& part, int leaf, int leaves);

/// Whether the rank holds the embedding table (world rank 0: it broadcasts the rows), and the head with its norm.
bool HoldsEmbedding(const RankPlace& place);
bool HoldsHead(const RankPlace& place);

/// Everything that the rank reads, in the order of the forward pass; a tied head is there once more.
std::vector<WeightPart> PartsOf(const ModelConfig& config, const RankPlace& place);

}  // namespace baton::engine
