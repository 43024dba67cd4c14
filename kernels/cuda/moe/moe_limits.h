// How many experts the routing, its lists and the grouped GEMM take.
#pragma once

namespace baton::cuda {

constexpr int kMaxExperts = 256, kMaxChosenExperts = 16;

}  // namespace baton::cuda
