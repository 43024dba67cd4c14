#include "engine/model/files/safetensors.h"

#include <cstring>

#include "common/status.h"

namespace baton::engine {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapping, MappedFile::Open(path));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, Parse(mapping->bytes(), path));
  file->mapping_ = std::move(mapping);
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(absl::Span<const uint8_t> bytes,
                                                                        std::string name) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->name_ = std::move(name);
  BATON_RETURN_IF_ERROR(file->ReadHeader(bytes));
  return file;
}

absl::Status SafetensorsFile::ReadHeader(absl::Span<const uint8_t> bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return absl::InvalidArgumentError(StrCat(name_, ": ", bytes.size(), " bytes are too few for a safetensors file"));
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t rest = bytes.size() - sizeof(length);
  if (length > kMaxHeaderBytes || length > rest) {
    return absl::InvalidArgumentError(StrCat(name_, ": header of ", length, " bytes, ", rest, " bytes follow, at most ",
                                             kMaxHeaderBytes, " are allowed"));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  BATON_ASSIGN_OR_RETURN(tensors_, ParseSafetensorsHeader(header, rest - length, name_));
  data_ = bytes.subspan(sizeof(length) + length);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  return absl::OkStatus();
}

const SafeTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto it = index_.find(AbslView(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace baton::engine
