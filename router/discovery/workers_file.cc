#include "router/discovery/workers_file.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/errno_text.h"
#include "common/foreign_text.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(250);
constexpr size_t kMostFileBytes = 4 << 20;

absl::StatusOr<std::string> ReadWhole(const std::string& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(StrCat("cannot be opened: ", ErrnoText()));
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return absl::UnavailableError(StrCat("cannot be read: ", ErrnoText()));
  if (text.size() > kMostFileBytes)
    return absl::InvalidArgumentError(StrCat("has more than ", kMostFileBytes, " bytes"));
  return text;
}

absl::StatusOr<Endpoint> ParseLine(absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  BATON_ASSIGN_OR_RETURN(const net::HostPort place, net::ParseHostPort(words.front()));
  Endpoint endpoint{net::JoinHostPort(place.host, place.port)};
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] != "draining")
      return absl::InvalidArgumentError(
          StrCat("\"", Printable(words[i]), "\" is unknown: HOST:PORT or HOST:PORT draining"));
    endpoint.terminating = true;
  }
  return endpoint;
}

}  // namespace

absl::StatusOr<std::vector<Endpoint>> ParseWorkersFile(std::string_view text, const std::string& file) {
  std::vector<Endpoint> out;
  std::set<std::string> addresses;
  int number = 0;
  bool something = false;
  for (absl::string_view line : absl::StrSplit(AbslView(text), '\n')) {
    ++number;
    const size_t comment = line.find('#');
    something |= comment != absl::string_view::npos;
    line = absl::StripAsciiWhitespace(line.substr(0, comment));
    if (line.empty()) continue;
    something = true;
    absl::StatusOr<Endpoint> endpoint = ParseLine(line);
    absl::Status status = endpoint.status();
    if (status.ok() && !addresses.insert(endpoint->address).second)
      status = absl::InvalidArgumentError(StrCat(endpoint->address, " is there twice"));
    if (!status.ok()) return absl::InvalidArgumentError(StrCat(file, ":", number, ": ", status.message()));
    out.push_back(*std::move(endpoint));
  }
  if (!something)
    return absl::InvalidArgumentError(StrCat(file, ":1: is empty; a comment says that no worker is meant"));
  return out;
}

WorkersFile::WorkersFile(std::string file)
    : file_(std::move(file)), name_("--workers-file " + file_), log_("--workers-file") {}

WorkersFile::~WorkersFile() { thread_.Stop(); }

void WorkersFile::Start(Tell tell) {
  tell_ = std::move(tell);
  thread_.Start([this] { Run(); });
}

void WorkersFile::Run() {
  do {
    Look();
  } while (thread_.Pause(kLookEvery));
}

void WorkersFile::Look() {
  absl::StatusOr<std::string> text = ReadWhole(file_);
  if (!text.ok()) {
    seen_.reset();
    taken_.reset();  // when it comes back, it is told again
    return log_.Failed(absl::Status(text.status().code(), StrCat(file_, " ", text.status().message())), known_.size());
  }
  if (taken_ == *text) return;
  if (seen_ != *text) {  // it may be half written
    seen_ = *std::move(text);
    return;
  }
  taken_ = *std::move(text);
  const auto endpoints = ParseWorkersFile(*taken_, file_);
  if (!endpoints.ok()) return log_.Failed(endpoints.status(), known_.size());
  log_.Knows(endpoints->size());
  known_ = *endpoints;
  tell_(known_);
}

}  // namespace baton::router
