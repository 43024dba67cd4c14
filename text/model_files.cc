#include "text/model_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "common/errno_text.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr int64_t kMaxFileBytes = 256ll << 20;

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadModelFile(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return Wrong(path, StrCat("cannot read: ", ErrnoText()));
  }
  if (!S_ISREG(status.st_mode)) return Wrong(path, "not a regular file");
  if (status.st_size > kMaxFileBytes) return Wrong(path, StrCat(status.st_size, " bytes, at most ", kMaxFileBytes));
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  if (!in.read(text.data(), status.st_size)) return Wrong(path, "cannot read the file");
  return text;
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadModelFile(path));
  if (!text) return nlohmann::json::object();
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(*text);
  } catch (const nlohmann::json::exception& e) {  // the message has the byte and the line, and what stands there
    return Wrong(path, StrCat("not JSON: ", Printable(e.what(), 300)));
  }
  if (!json.is_object()) return Wrong(path, "not a JSON object");
  return json;
}

absl::StatusOr<std::string> SpecialToken(const nlohmann::json& config, const nlohmann::json& map,
                                         const std::string& name, const std::string& directory) {
  for (const nlohmann::json* object : {&config, &map}) {
    const auto it = object->find(name);
    if (it == object->end() || it->is_null()) continue;
    if (it->is_string()) return it->get<std::string>();
    if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
      return (*it)["content"].get<std::string>();
    }
    return Wrong(directory, StrCat(name,
                                   " in tokenizer_config.json or special_tokens_map.json is neither a string nor "
                                   "an object with \"content\""));
  }
  return std::string();
}

absl::StatusOr<std::vector<int64_t>> IdList(const nlohmann::json& object, const std::string& key,
                                            const std::string& path) {
  std::vector<int64_t> ids;
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return ids;
  const nlohmann::json list = it->is_array() ? *it : nlohmann::json::array({*it});
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer()) return Wrong(path, StrCat(key, " is neither an integer nor a list of integers"));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace baton
