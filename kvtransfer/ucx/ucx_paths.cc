// The ways that UCX has, what registers memory, and the way that it chose: by its component interface for the machine,
// by its own printout for an endpoint (1.13 has no other way to ask).
#include <sys/mman.h>
#include <uct/api/uct.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "common/status.h"
#include "kvtransfer/ucx/ucx_peers.h"

namespace baton {
namespace {

/// Calls `look` with each memory domain that opens, and its name.
template <typename Look>
void ForEachDomain(const Look& look) {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct_query_components(&components, &count) != UCS_OK) return;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (uct_component_query(components[i], &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (uct_component_query(components[i], &attributes) != UCS_OK) continue;
    for (const uct_md_resource_desc_t& resource : domains) {
      uct_md_config_t* config = nullptr;
      if (uct_md_config_read(components[i], nullptr, nullptr, &config) != UCS_OK) continue;
      uct_md_h domain = nullptr;
      const ucs_status_t opened = uct_md_open(components[i], resource.md_name, config, &domain);
      uct_config_release(config);
      if (opened != UCS_OK) continue;
      look(domain, resource.md_name);
      uct_md_close(domain);
    }
  }
  uct_release_component_list(components);
}

/// "transport/device" of each way through the domain.
std::vector<std::string> WaysThrough(uct_md_h domain) {
  std::vector<std::string> out;
  uct_tl_resource_desc_t* found = nullptr;
  unsigned count = 0;
  if (uct_md_query_tl_resources(domain, &found, &count) != UCS_OK) return out;
  for (unsigned i = 0; i < count; ++i) out.push_back(std::string(found[i].tl_name) + "/" + found[i].dev_name);
  uct_release_tl_resource_list(found);
  return out;
}

}  // namespace

std::vector<std::string> UcxTransportsHere() {
  std::vector<std::string> out;
  ForEachDomain([&](uct_md_h domain, const char*) {
    for (std::string& way : WaysThrough(domain)) out.push_back(std::move(way));
  });
  std::ranges::sort(out);
  return out;
}

std::vector<UcxRegistration> RegisterPages() {
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {};
  std::vector<UcxRegistration> out;
  ForEachDomain([&](uct_md_h domain, const char* name) {
    uct_md_attr_t attributes{};
    if (uct_md_query(domain, &attributes) != UCS_OK || (attributes.cap.flags & UCT_MD_FLAG_REG) == 0) return;
    if (WaysThrough(domain).empty()) return;
    uct_mem_h memory = nullptr;
    const ucs_status_t registered = uct_md_mem_reg(domain, page, bytes, UCT_MD_MEM_ACCESS_ALL, &memory);
    if (registered == UCS_OK) uct_md_mem_dereg(domain, memory);
    out.push_back({name, ucx::ToStatus(registered, StrCat("a page of ", bytes, " bytes with ", name))});
  });
  munmap(page, bytes);
  std::ranges::sort(out, {}, &UcxRegistration::device);
  return out;
}

absl::Status RdmaReachesCuda() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  if (major == 1 && minor < 16)
    return absl::FailedPreconditionError(StrCat("UCX ", UcxVersion(), " reads no GPU's memory by RDMA, 1.16 does"));
  bool reaches = false, knows = false;
  ForEachDomain([&](uct_md_h domain, const char*) {
    uct_md_attr_t attributes{};
    if (uct_md_query(domain, &attributes) != UCS_OK) return;
    const std::vector<std::string> ways = WaysThrough(domain);
    const bool cuda = (attributes.cap.reg_mem_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    reaches |= cuda && std::ranges::any_of(ways, IsRdma);
    knows |= std::ranges::any_of(ways, [](const std::string& way) { return way.starts_with("cuda_copy"); });
  });
  if (!knows) return absl::FailedPreconditionError(StrCat("UCX ", UcxVersion(), " knows no CUDA memory here"));
  if (!reaches)
    return absl::FailedPreconditionError("no RDMA device registers a GPU's memory (nvidia-peermem, or DMA-BUF)");
  return absl::OkStatus();
}

bool IsRdma(std::string_view transport) { return transport.starts_with("rc_"); }

namespace ucx {
namespace {

/// "transport/device" of each lane that UCX's printout marks with one of `uses`.
std::set<std::string> LanesFor(std::string_view printout, const std::vector<std::string_view>& uses) {
  std::set<std::string> out;
  for (size_t at = printout.find("lane["); at != printout.npos; at = printout.find("lane[", at + 1)) {
    const std::string_view line = printout.substr(at, printout.find('\n', at) - at);
    const size_t colon = line.find(':', line.find(']') + 2);  // lane[0]:  2:posix/memory.0 md[1] …
    if (colon == line.npos) continue;
    const std::string_view rest = line.substr(colon + 1);
    const bool used = std::ranges::any_of(uses, [&](std::string_view use) { return rest.find(use) != rest.npos; });
    if (used) out.insert(std::string(rest.substr(0, std::min(rest.find('.'), rest.find(' ')))));
  }
  return out;
}

}  // namespace

std::string UcxTransport::path(PeerNumber number) const {
  const auto found = peers_.find(number);
  if (found == peers_.end()) return "";
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "";
  ucp_ep_print_info(found->second->endpoint, stream);
  std::fclose(stream);
  const std::string printout(text, bytes);
  std::free(text);
  const bool put = options_.verb == UcxVerb::kPut;
  std::set<std::string> lanes =
      LanesFor(printout, put ? std::vector<std::string_view>{"rma#", "rma_bw#"} : std::vector<std::string_view>{" am"});
  if (lanes.empty()) lanes = LanesFor(printout, {" "});
  std::string out;
  for (const std::string& lane : lanes) out += (out.empty() ? "" : "+") + lane;
  return out + (put ? " put" : " messages");
}

}  // namespace ucx
}  // namespace baton
