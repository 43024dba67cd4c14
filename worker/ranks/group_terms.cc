#include "worker/ranks/group_terms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "engine/parallel/tcp_mesh.h"
#include "engine/step/step_batch.h"
#include "kvtransfer/rank_line_codec.h"

namespace baton::worker {
namespace {

constexpr std::string_view kAlike[] = {"role",
                                       "load-format",
                                       "dtype",
                                       "enforce-eager",  // ranks run a step in one form, recorded or not
                                       "cuda-graph-sizes",
                                       "seed",
                                       "max-model-len",
                                       "tensor-parallel-size",
                                       "nnodes",
                                       "pipeline-parallel-size",
                                       "reduction-width",
                                       "kv-cache-dtype",
                                       "block-size",
                                       "max-num-seqs",
                                       "max-num-batched-tokens",
                                       "landing-slots",
                                       "landing-slot-bytes",
                                       "kv-tls"};

using Terms = std::array<char, 4096>;  // text, zero behind it

std::vector<std::string> LinesOf(const Terms& terms) {
  return absl::StrSplit(std::string(terms.data(), strnlen(terms.data(), terms.size())), '\n');
}

}  // namespace

std::string TermsOf(const WorkerConfig& config) {
  WorkerConfig read = config;
  read.landing_slot_bytes = config.LandingSlotBytes();
  std::string out = StrCat("frames of form ", engine::kFrameForm, "\n");
  const auto add = [&](std::string_view name, const auto& value, auto&&...) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>> ||
                  std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      if (std::ranges::find(kAlike, name) != std::end(kAlike)) out += StrCat("--", name, " ", value, "\n");
    }
  };
  VisitModelFields(read, add);
  VisitRankFields(read, add);
  VisitEngineFields(read, add);
  VisitHandoffFields(read, add);  // rank 0 grants the slots of all ranks
  return out;
}

std::string TermsOf(const std::string& model_digest, const kernels::OpsTraits& traits) {
  return StrCat("steps of form ", engine::StepBatch::kForm, "\norders of form ", kRankLineForm, "\nmodel digest ",
                model_digest, "\nISA ", traits.isa, "\nkernels ", traits.kernel_version, "\ncompute ",
                DTypeName(traits.compute), "\nKV ", DTypeName(traits.kv), "\n");
}

absl::Status AgreeOnTerms(engine::Communicator* world, const std::string& terms) {
  if (world == nullptr) return absl::OkStatus();
  Terms mine{};
  BATON_CHECK(terms.size() < mine.size());
  std::ranges::copy(terms, mine.begin());
  std::vector<Terms> all(static_cast<size_t>(world->size()));
  BATON_RETURN_IF_ERROR(world->AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))));
  const std::vector<std::string> first = LinesOf(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> other = LinesOf(all[rank]);
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "", b = i < other.size() ? other[i] : "";
      if (a != b)
        return absl::FailedPreconditionError(
            StrCat("rank ", rank, " of ", all.size(), " has ", b.empty() ? "other flags" : b, ", rank 0 has ", a));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::worker
