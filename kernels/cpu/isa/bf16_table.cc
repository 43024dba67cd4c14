#include "kernels/cpu/isa/bf16_table.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace baton::kernels::cpu {

const Bf16Table& CompiledAmxTable();  // table_amx.cc, compiled for AMX
const Bf16Table& CompiledDotTable();  // table_avx512_bf16.cc, compiled for AVX512_BF16

namespace {

// Linux gives a process the tiles' 8 KB of state when it asks (ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA).
bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool HasAmxBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & (1u << 22)) != 0 && (d & (1u << 24)) != 0 && AskForTiles();
}

bool HasAvx512Bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const Bf16Table* DotTableOrNull() {
  static const bool has = HasAvx512Bf16();
  return has ? &CompiledDotTable() : nullptr;
}

const Bf16Table* AmxTableOrNull() {
  static const bool has = HasAmxBf16();
  return has ? &CompiledAmxTable() : nullptr;
}

}  // namespace baton::kernels::cpu
