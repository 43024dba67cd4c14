#include "cli/allocator.h"

#ifdef BATON_HAS_MIMALLOC
#include <mimalloc.h>
#endif

namespace baton::cli {

void GiveBackWhatEndedThreadsFreed() {
#ifdef BATON_HAS_MIMALLOC
#if MI_MALLOC_VERSION < 210
  mi_option_enable(mi_option_abandoned_page_decommit);
#else
  mi_option_enable(mi_option_abandoned_page_purge);
#endif
#endif
}

}  // namespace baton::cli
