// The ways that UCX has, and the way that it chose: by its component interface for the machine, by its own printout for
// an endpoint (1.13 has no other way to ask).
#include <uct/api/uct.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "kvtransfer/ucx/ucx_peers.h"

namespace baton {
namespace {

void AddTransports(uct_component_h component, const char* name, std::vector<std::string>& out) {
  uct_md_config_t* config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h domain = nullptr;
  const ucs_status_t opened = uct_md_open(component, name, config, &domain);
  uct_config_release(config);
  if (opened != UCS_OK) return;
  uct_tl_resource_desc_t* found = nullptr;
  unsigned count = 0;
  if (uct_md_query_tl_resources(domain, &found, &count) == UCS_OK) {
    for (unsigned i = 0; i < count; ++i) out.push_back(std::string(found[i].tl_name) + "/" + found[i].dev_name);
    uct_release_tl_resource_list(found);
  }
  uct_md_close(domain);
}

}  // namespace

std::vector<std::string> UcxTransportsHere() {
  std::vector<std::string> out;
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct_query_components(&components, &count) != UCS_OK) return out;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (uct_component_query(components[i], &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (uct_component_query(components[i], &attributes) != UCS_OK) continue;
    for (const uct_md_resource_desc_t& domain : domains) AddTransports(components[i], domain.md_name, out);
  }
  uct_release_component_list(components);
  std::ranges::sort(out);
  return out;
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
