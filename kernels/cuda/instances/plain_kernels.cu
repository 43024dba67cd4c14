// Kernels that are compiled wherever they are launched; here so that all of them stand in the table of make cuda.
#include "kernels/cuda/instances/instances.h"

namespace baton::cuda {
template void LaunchScatterKv<KvConversion::kNone>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kF32ToBf16>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kF16ToBf16>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kBf16ToE4m3>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kF32ToE4m3>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kF16ToE4m3>(gpu::Stream&, const KvRunsParams&);
template void LaunchScatterKv<KvConversion::kE4m3ToBf16>(gpu::Stream&, const KvRunsParams&);
extern void (*const kGatherLauncher)(gpu::Stream&, const KvRunsParams&) = &LaunchGatherKv;
extern void (*const kMergeStateLauncher)(gpu::Stream&, const MergeStateParams&, bool) = &LaunchMergeState;
extern void (*const kMoeRouteLauncher)(gpu::Stream&, const MoeRouteParams&, bool) = &LaunchMoeRoute;
extern void (*const kMoeListsLauncher)(gpu::Stream&, const MoeListParams&, bool) = &LaunchMoeLists;
extern void (*const kMoeCombineLauncher)(gpu::Stream&, const MoeCombineParams&, bool) = &LaunchMoeCombine;
extern void (*const kGatherColumnsLauncher)(gpu::Stream&, const GatherColumnsParams&) = &LaunchGatherColumns;
extern void (*const kGatherRowsLauncher)(gpu::Stream&, const GatherRowsParams&) = &LaunchGatherRows;
extern void (*const kRoundInputsLauncher)(gpu::Stream&, const RoundInputsParams&, bool) = &LaunchRoundInputs;
extern void (*const kSoftCapLauncher)(gpu::Stream&, const SoftCapParams&) = &LaunchSoftCap;
extern void (*const kCopyBlocksLauncher)(gpu::Stream&, const CopyBlocksParams&) = &LaunchCopyBlocks;
extern void (*const kBeginUnitsLauncher)(gpu::Stream&, const BeginUnitsParams&, bool) = &LaunchBeginUnits;
extern void (*const kSampleLauncher)(gpu::Stream&, const SampleParams&, bool) = &LaunchSample;
extern void (*const kTreeSumLauncher)(gpu::Stream&, const TreeSumParams&, int) = &LaunchTreeSum;
extern void (*const kPeerSumLauncher)(gpu::Stream&, const PeerPushParams&, const PeerSumParams&, bool) = &LaunchPeerSum;
}  // namespace baton::cuda
