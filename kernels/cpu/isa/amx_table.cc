#include "kernels/cpu/isa/amx_table.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace baton::kernels::cpu {

const AmxTable& CompiledAmxTable();  // table_amx.cc, compiled for AMX

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

}  // namespace

const AmxTable* AmxTableOrNull() {
  static const bool has = HasAmxBf16();
  return has ? &CompiledAmxTable() : nullptr;
}

}  // namespace baton::kernels::cpu
