#include "engine/model/weight_parts.h"

namespace baton::engine {
namespace {

WeightPart Rows(WeightPart part, int64_t first, int64_t rows) {
  part.first_row = first;
  part.rows = rows;
  return part;
}
WeightPart Columns(WeightPart part, int64_t first, int64_t columns) {
  part.first_column = first;
  part.columns = columns;
  return part;
}

}  // namespace

WeightPart PartOf(const ModelConfig& config, const RankPlace& place, Weight weight, int layer) {
  const RankShape shape = ShapeOf(config, place);
  const int64_t dim = config.head_dim;
  const WeightPart whole = WeightPart::Whole(RuleOf(config, weight, layer));
  switch (weight) {
    case Weight::kQuery:
    case Weight::kQueryBias: return Rows(whole, shape.q_heads.begin * dim, shape.q_heads.size() * dim);
    case Weight::kKey:
    case Weight::kKeyBias:
    case Weight::kValue:
    case Weight::kValueBias: return Rows(whole, shape.kv_heads.begin * dim, shape.kv_heads.size() * dim);
    case Weight::kGate:
    case Weight::kUp: return Rows(whole, shape.inner.begin, shape.inner.size());
    case Weight::kOutput: return Columns(whole, shape.q_heads.begin * dim, shape.q_heads.size() * dim);
    case Weight::kDown: return Columns(whole, shape.inner.begin, shape.inner.size());
    case Weight::kLmHead: return Rows(whole, shape.vocab.begin, shape.vocab.size());
    default: return whole;
  }
}

WeightPart LeafOf(const WeightPart& part, int leaf, int leaves) {
  const int64_t columns = part.columns / leaves;
  return Columns(part, part.first_column + leaf * columns, columns);
}

bool HoldsEmbedding(const RankPlace& place) { return place.rank() == 0; }
bool HoldsHead(const RankPlace& place) { return place.first_stage(); }

std::vector<WeightPart> PartsOf(const ModelConfig& config, const RankPlace& place) {
  const RankShape shape = ShapeOf(config, place);
  std::vector<WeightPart> out;
  for (const WeightRule& rule : WeightRules(config)) {
    if (rule.weight == Weight::kEmbedding && !HoldsEmbedding(place)) continue;
    if ((rule.weight == Weight::kFinalNorm || rule.weight == Weight::kLmHead) && !HoldsHead(place)) continue;
    if (rule.layer >= 0 && (rule.layer < shape.layers.begin || rule.layer >= shape.layers.end)) continue;
    out.push_back(PartOf(config, place, rule.weight, rule.layer));
  }
  if (config.tied_embeddings && HoldsHead(place)) {
    WeightPart head = WeightPart::Whole(RuleOf(config, Weight::kEmbedding));
    out.push_back(Rows(std::move(head), shape.vocab.begin, shape.vocab.size()));
  }
  return out;
}

}  // namespace baton::engine
