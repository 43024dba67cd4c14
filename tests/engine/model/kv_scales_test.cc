// Scales of KV in e4m3 that a checkpoint gives: found under the names that writers have given them, part of the model's
// digest, refused by name where they cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/engine/model/kv_scaled.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

const std::vector<int32_t> kScaledPrompt = {1,  17,  260, 4, 99,  99,  3,  250, 31, 8,
                                            77, 140, 5,   6, 201, 300, 12, 13,  14, 15};

// Of the second layer alone, under the usual names or others.
using Change = std::function<void(std::vector<NamedTensor>&)>;
Change Scaled(const std::vector<float>& keys, const std::vector<float>& values,
              const std::array<const char*, 2>& names = {"self_attn.k_scale", "self_attn.v_scale"}) {
  return [=](std::vector<NamedTensor>& tensors) {
    const auto add = [&](const char* name, const std::vector<float>& numbers) {
      std::string bytes;
      for (const float x : numbers) bytes += GgufBuilder::Bytes(x);
      const auto count = static_cast<int64_t>(numbers.size());
      if (count > 0) tensors.push_back({StrCat("model.layers.1.", name), "F32", {count}, bytes});
    };
    add(names[0], keys);
    add(names[1], values);
  };
}
Change Both(const Change& first, const Change& second) {
  return [=](std::vector<NamedTensor>& tensors) {
    first(tensors);
    second(tensors);
  };
}

/// `change` to a model without scales.
Change Only(const Change& change) { return change ? Both(WithoutKvScales, change) : Change(WithoutKvScales); }

struct KvAnswer {
  LogitRows logits;
  float key_scale = 0, value_scale = 0;  ///< of layer 1
};
absl::StatusOr<KvAnswer> WithKvIn(DType kv, const Change& change) {
  const KvScaledModel model("llama3", Only(change));
  kernels::CpuOpsConfig ops{.dtype = DType::kF32};
  ops.kv_dtype = kv;
  BATON_ASSIGN_OR_RETURN(const auto loaded, PagedModel::Load({.path = model.path()}, ops));
  const std::vector<KvPlane>& planes = loaded->model().kv_layout().groups[0].planes;
  EXPECT_EQ(planes[0].ScaleOf(0), 1.0f);
  BATON_ASSIGN_OR_RETURN(LogitRows logits, loaded->Prefill(kScaledPrompt, 7));
  return KvAnswer{std::move(logits), planes[0].ScaleOf(1), planes[1].ScaleOf(1)};
}

TEST(KvScales, AreWhatKvInFloat8IsMultipliedWith) {
  const LogitRows want = WithKvIn(DType::kF32, nullptr)->logits;
  EXPECT_EQ(WithKvIn(DType::kF32, Scaled({0.5f}, {0.125f}))->logits, want) << "KV of another type needs none";
  const KvAnswer near = *WithKvIn(DType::kF8E4M3, Scaled({0.5f}, {0.125f}));
  EXPECT_EQ(near.key_scale, 0.5f);
  EXPECT_EQ(near.value_scale, 0.125f);
  EXPECT_LT(Distance(near.logits, want), 0.1);
  const KvAnswer narrow = *WithKvIn(DType::kF8E4M3, Scaled({0.001f}, {0.001f}));
  EXPECT_GT(Distance(narrow.logits, want), 2 * Distance(near.logits, want)) << "values beyond ±0.448";
  EXPECT_EQ(WithKvIn(DType::kF8E4M3, Scaled({0.5f, 0.5f, 0.5f, 0.5f}, {0.125f}))->logits, near.logits);
  const std::array<const char*, 2> others[] = {{"self_attn.attn.k_scale", "self_attn.attn.v_scale"},
                                               {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
                                               {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"}};
  for (const auto& names : others)
    EXPECT_EQ(WithKvIn(DType::kF8E4M3, Scaled({0.5f}, {0.125f}, names))->logits, near.logits) << names[0];
  const KvAnswer one = *WithKvIn(DType::kF8E4M3, Scaled({0.25f}, {}, {"self_attn.kv_scale", ""}));
  EXPECT_EQ(one.key_scale, 0.25f);
  EXPECT_EQ(one.value_scale, 0.25f);
}

TEST(KvScales, MakeAnotherModel) {
  const auto digest = [](const Change& change) {
    return PagedModel::Load({.path = KvScaledModel("llama3", Only(change)).path()}, {})
        .value()
        ->model()
        .config()
        .digest;
  };
  EXPECT_EQ(digest(Scaled({1.0f}, {1.0f})), digest(nullptr));
  EXPECT_NE(digest(Scaled({0.5f}, {1.0f})), digest(nullptr));
  EXPECT_NE(digest(Scaled({0.5f}, {1.0f})), digest(Scaled({1.0f}, {0.5f})));
  EXPECT_EQ(digest(Scaled({0.5f}, {0.5f}, {"self_attn.attn.k_scale", "self_attn.attn.v_scale"})),
            digest(Scaled({0.5f}, {0.5f})));
}

TEST(KvScales, ThatCannotBeAreRefusedByName) {
  const auto error = [](const Change& change) {
    EXPECT_TRUE(WithKvIn(DType::kF32, change).ok()) << "KV of another type needs none";
    return std::string(WithKvIn(DType::kF8E4M3, change).status().message());
  };
  const auto about_keys = [&](float number) { return error(Scaled({number}, {0.5f})); };
  const std::string k = "model.layers.1.self_attn.k_scale", v = "model.layers.1.self_attn.v_scale";
  EXPECT_THAT(about_keys(0.0f), HasSubstr(k + " is 0: a scale of KV is a number above 0"));
  EXPECT_THAT(about_keys(-0.5f), HasSubstr(k + " is -0.5: "));
  EXPECT_THAT(about_keys(std::nanf("")), HasSubstr(k + " is nan: "));
  EXPECT_THAT(about_keys(INFINITY), HasSubstr(k + " is inf: "));
  EXPECT_THAT(about_keys(1e-35f), HasSubstr(k + " is 1e-35: a scale of KV is a number above 0, from 1e-30 to 1e+30"));
  EXPECT_THAT(error(Scaled({0.5f}, {-1.0f})), HasSubstr(v + " is -1: "));
  EXPECT_THAT(error(Scaled({0.5f}, {})), HasSubstr(k + " is 0.5 and there is no scale of the values of layer 1"));
  EXPECT_THAT(error(Scaled({}, {0.25f})), HasSubstr(v + " is 0.25 and there is no scale of the keys of layer 1"));
  EXPECT_THAT(error(Scaled({0.5f, 0.5f, 0.25f, 0.5f}, {0.5f})),
              HasSubstr(k + " has 4 numbers, 0.5 and 0.25 among them: one for all heads is served"));
  EXPECT_THAT(error(Both(Scaled({0.5f}, {0.5f}), Scaled({0.25f}, {}, {"self_attn.attn.k_scale", ""}))),
              HasSubstr("self_attn.attn.k_scale is 0.25 and model.layers.1.self_attn.k_scale is 0.5"));
  EXPECT_THAT(error(Scaled({0.5f}, {0.5f}, {"attention.k_scale", "attention.v_scale"})),
              HasSubstr("model.layers.1.attention.k_scale is a scale of KV under a name that is not known"));
  EXPECT_EQ(error([](std::vector<NamedTensor>& tensors) {  // of a tower, and of a layer that only drafts
              for (const char* name : {"vision.layers.0.self_attn.k_scale", "model.layers.3.self_attn.k_scale"})
                tensors.push_back({name, "F32", {1}, GgufBuilder::Bytes(-1.0f)});
            }),
            "");
}

}  // namespace
}  // namespace baton::engine
