// The models that a GPU's kernels are compiled for (OpsTraits::device_panels): a worker refuses others at its start,
// and a memory plan does without a GPU.
#pragma once

#include <array>

namespace baton::kernels {

inline constexpr std::array kDeviceHeadDims{64, 80, 96, 128, 256};
inline constexpr int kDeviceColumnMultiple = 8;  ///< of hidden sizes and in_features
inline constexpr int kDeviceMostHidden = 16384;  ///< columns of a norm
inline constexpr int kDeviceMostKvHeads = 256;

}  // namespace baton::kernels
