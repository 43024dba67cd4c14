// Libraries of NVIDIA that a Python's packages hold: where its wheels have put them. No program is run.
#pragma once

#include <string>
#include <string_view>

namespace baton::cuda {

/// The file `within` (nvidia/nccl/lib/libnccl.so.2) the packages of the first Python that has it, in the order of the
/// folders of `path`, as PATH lists them. A virtual environment's own come before those of the Python that it was made
/// of. Empty: none has it.
std::string LibraryOfPython(std::string_view path, const std::string& within);

/// PATH.
std::string FoldersOfPrograms();

}  // namespace baton::cuda
