#include "kernels/cpu/cpu_choice.h"

#include <algorithm>
#include <cstdlib>

#include "common/status.h"
#include "kernels/cpu/bf16_product.h"

namespace baton::kernels::cpu {
namespace {

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

constexpr const char* kAmx = "avx512_core_amx";
constexpr const char* kIsas[] = {"avx2", "avx512_core", "avx512_core_bf16", kAmx};

// What BATON_MAX_ISA allows; empty: anything.
absl::StatusOr<std::string> IsaCap() {
  const char* limit = std::getenv("BATON_MAX_ISA");
  const std::string cap = limit != nullptr ? limit : "";
  if (!cap.empty() && std::ranges::find(kIsas, cap) == std::end(kIsas)) {
    return absl::InvalidArgumentError(
        StrCat("BATON_MAX_ISA=", cap, ": expected avx2, avx512_core, avx512_core_bf16 or avx512_core_amx"));
  }
  return cap;
}

absl::StatusOr<const KernelTable*> ChooseTable(CpuIsa wanted, const std::string& cap) {
  if (!HasAvx2())
    return absl::FailedPreconditionError(
        "this machine has no AVX2 with FMA and F16C, the least that Baton's CPU kernels need");
  if (wanted == CpuIsa::kAvx512 && !HasAvx512())
    return absl::FailedPreconditionError("this machine has no AVX-512 (F, BW, VL, DQ)");
  const bool wide = wanted == CpuIsa::kAvx512 || (wanted == CpuIsa::kBest && HasAvx512() && cap != "avx2");
  return wide ? &Avx512Table() : &Avx2Table();
}

bool HasBf16Instructions(const std::string& isa) { return isa == "avx512_core_bf16" || isa == "avx512_core_amx"; }

// What multiplies in bf16 on `isa`; null: oneDNN, which emulates it below AVX512_BF16.
const Bf16Table* ChooseBf16Table(const std::string& isa) {
  const Bf16Table* amx = isa == kAmx ? AmxTableOrNull() : nullptr;
  return amx != nullptr ? amx : HasBf16Instructions(isa) ? DotTableOrNull() : nullptr;
}

std::string KernelVersion(const OpsTraits& traits) {
  if (traits.compute != DType::kBF16) return "cpu-6";
  return ChooseBf16Table(traits.isa) != nullptr ? "cpu-7" : StrCat("cpu-3/onednn-", OneDnnVersion());
}

// f32 or bf16, as asked for or as the machine does best, with the name of what decides the bits.
absl::StatusOr<OpsTraits> ChooseCompute(const CpuOpsConfig& config, const KernelTable& table, const std::string& cap) {
  const std::string one_dnn = OneDnnIsa(cap);
  const bool may = HasBf16Instructions(one_dnn) && config.isa != CpuIsa::kAvx2 && cap != "avx2";
  OpsTraits traits;
  traits.compute = config.dtype.value_or(may ? DType::kBF16 : DType::kF32);
  if (traits.compute == DType::kBF16 && !may && !config.emulate_bf16) {
    return absl::FailedPreconditionError(StrCat("bfloat16 on the CPU needs AVX512_BF16 or AMX, and this machine has ",
                                                one_dnn, " (BATON_MAX_ISA may lower it): use --dtype float32"));
  }
  if (traits.compute != DType::kBF16 && traits.compute != DType::kF32) {
    return absl::FailedPreconditionError(
        StrCat("the CPU computes in float32 or bfloat16, not in ", DTypeName(traits.compute)));
  }
  traits.kv = config.kv_dtype.value_or(traits.compute);
  if (traits.kv != DType::kF32 && traits.kv != DType::kBF16 && traits.kv != DType::kF16 &&
      traits.kv != DType::kF8E4M3) {
    return absl::FailedPreconditionError(
        StrCat("the CPU keeps KV in float32, bfloat16, float16 or fp8_e4m3, not in ", DTypeName(traits.kv)));
  }
  const bool bf16 = traits.compute == DType::kBF16;
  traits.isa = bf16 ? one_dnn : table.isa;
  traits.kernel_version = KernelVersion(traits);
  traits.packed_rows = !bf16 || ChooseBf16Table(traits.isa) != nullptr;
  return traits;
}

}  // namespace

absl::StatusOr<CpuChoice> ChooseCpu(const CpuOpsConfig& config) {
  CpuChoice choice;
  BATON_ASSIGN_OR_RETURN(const std::string cap, IsaCap());
  BATON_ASSIGN_OR_RETURN(choice.kernels, ChooseTable(config.isa, cap));
  BATON_ASSIGN_OR_RETURN(choice.traits, ChooseCompute(config, *choice.kernels, cap));
  if (choice.traits.compute != DType::kBF16) return choice;
  choice.bf16 = ChooseBf16Table(choice.traits.isa);
  // What attention in tiles may read.
  const bool exact_in_bf16 = choice.traits.kv == DType::kBF16 || choice.traits.kv == DType::kF8E4M3;
  if (choice.bf16 != nullptr && exact_in_bf16) choice.kernels = &choice.bf16->kernels;
  return choice;
}

}  // namespace baton::kernels::cpu
