#include "router/discovery/workers_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
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

constexpr size_t kMostFileBytes = 4 << 20;

struct FileText {
  std::string text;
  bool renamed = false;  ///< bytes are older than the last change: of its name, or of its rights
};

absl::StatusOr<FileText> ReadNow(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(StrCat("cannot be opened: ", ErrnoText()));
  const auto closes = absl::MakeCleanup([fd] { close(fd); });
  struct stat facts{};
  if (fstat(fd, &facts) == 0 && !S_ISREG(facts.st_mode)) return absl::UnavailableError("is no file");
  FileText out;
  out.text.resize(kMostFileBytes + 1);
  size_t bytes = 0;
  for (ssize_t got = 1; got > 0 && bytes < out.text.size(); bytes += static_cast<size_t>(got)) {
    got = read(fd, out.text.data() + bytes, out.text.size() - bytes);
    if (got < 0) return absl::UnavailableError(StrCat("cannot be read: ", ErrnoText()));
  }
  out.text.resize(bytes);
  if (bytes > kMostFileBytes) return absl::InvalidArgumentError(StrCat("has more than ", kMostFileBytes, " bytes"));
  const auto at = [](const timespec& t) { return std::pair(t.tv_sec, t.tv_nsec); };
  out.renamed = fstat(fd, &facts) == 0 && at(facts.st_ctim) > at(facts.st_mtim);
  return out;
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

absl::StatusOr<WorkersInFile> ParseWorkersFile(std::string_view text, const std::string& file) {
  WorkersInFile out;
  std::map<std::string, std::pair<size_t, int>> known;  // by address: which worker, and its line
  int number = 0, again = 0;
  bool something = false;
  for (absl::string_view line : absl::StrSplit(AbslView(text), '\n')) {
    ++number;
    const size_t comment = line.find('#');
    something |= comment != absl::string_view::npos;
    line = absl::StripAsciiWhitespace(line.substr(0, comment));
    if (line.empty()) continue;
    something = true;
    absl::StatusOr<Endpoint> endpoint = ParseLine(line);
    if (!endpoint.ok()) return absl::InvalidArgumentError(StrCat(file, ":", number, ": ", endpoint.status().message()));
    const auto [found, fresh] = known.try_emplace(endpoint->address, out.workers.size(), number);
    if (fresh) {
      out.workers.push_back(*std::move(endpoint));
      continue;
    }
    out.workers[found->second.first].terminating |= endpoint->terminating;
    if (++again == 1)
      out.left_out = StrCat(file, ":", number, ": ", endpoint->address, " is there already, in line ",
                            found->second.second, "; it is taken once");
  }
  if (again > 1) out.left_out += StrCat("; more such lines: ", again - 1);
  if (!something)
    return absl::InvalidArgumentError(StrCat(file, ":1: is empty; a comment says that no worker is meant"));
  return out;
}

bool WholeFile::See(const std::string& text, bool renamed, TimePoint now) {
  if (seen_ != text) {
    if (!seen_) stood_ = now;
    grows_ = seen_ && text.starts_with(*seen_);
    seen_ = text;
    since_ = now;
    moves_ = now - stood_ >= kMoving;
    if (!moves_ || !renamed) return false;
  } else if (moves_ && grows_ && now - since_ < kLook) {
    return false;
  }
  moves_ = false;
  stood_ = now;
  return text.empty() || text.ends_with('\n') || renamed || now - since_ >= kStill;
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
  } while (thread_.Pause(whole_.pause()));
}

void WorkersFile::Look() {
  absl::StatusOr<FileText> now = ReadNow(file_);
  if (!now.ok()) {
    whole_.Gone();
    taken_.reset();  // when it comes back, it is told again
    return log_.Failed(absl::Status(now.status().code(), StrCat(file_, " ", now.status().message())), known_.size());
  }
  if (!whole_.See(now->text, now->renamed, clock_.Now()) || taken_ == now->text) return;
  taken_ = std::move(now->text);
  absl::StatusOr<WorkersInFile> read = ParseWorkersFile(*taken_, file_);
  if (!read.ok()) return log_.Failed(read.status(), known_.size());
  log_.Knows(read->workers.size());
  log_.LeftOut(read->left_out);
  known_ = std::move(read->workers);
  tell_(known_);
}

}  // namespace baton::router
