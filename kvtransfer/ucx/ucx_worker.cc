#include "kvtransfer/ucx/ucx_worker.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton::ucx {

absl::Status ToStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

namespace {

constexpr unsigned kLandingAccess =
    UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE;

absl::StatusOr<std::string> PackedKeyOf(ucp_context_h context, ucp_mem_h memory) {
  void* key = nullptr;
  size_t bytes = 0;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_rkey_pack(context, memory, &key, &bytes), "remote key"));
  std::string out(static_cast<const char*>(key), bytes);
  ucp_rkey_buffer_release(key);
  return out;
}

absl::Status Set(ucp_config_t* config, const char* name, const std::string& value) {
  return ToStatus(ucp_config_modify(config, name, value.c_str()), StrCat(name, "=", value));
}

/// UCX would patch mmap and its like for the whole process, to see when memory that it has registered goes, and keep
/// what is unmapped beside mimalloc. Our memory is registered once and stays. Its environment is read before main, so
/// it is told here, before the first context.
void LeaveMmapAlone() {
  static std::once_flag once;
  std::call_once(once, [] {
    ucm_global_config_t options = ucm_global_opts;
    options.enable_events = 0;  // and nothing else: 1.13 recurses without end where its other switches are off
    ucm_set_global_opts(&options);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const UcxOptions& options) {
  std::unique_ptr<Worker> worker(new Worker());
  BATON_RETURN_IF_ERROR(worker->Open(options));
  BATON_RETURN_IF_ERROR(worker->MapLanding(options));
  return worker;
}

absl::Status Worker::Open(const UcxOptions& options) {
  LeaveMmapAlone();
  ucp_config_t* config = nullptr;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_config_read(nullptr, nullptr, &config), "configuration"));
  const bool cuda = options.lends == UcxLends::kCuda;
  absl::Status set = Set(config, "TLS", options.transports + (cuda ? ",cuda_copy" : ""));  // which knows a GPU's memory
  if (!options.devices.empty()) set.Update(Set(config, "NET_DEVICES", options.devices));
  const bool tcp_only = options.transports == "tcp";  // then UCX warns of an option that nothing reads
  if (!tcp_only) set.Update(Set(config, "MM_ERROR_HANDLING", "y"));
  set.Update(Set(config, "KEEPALIVE_INTERVAL", "200ms"));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (options.verb == UcxVerb::kPut ? UCP_FEATURE_RMA : 0);
  const ucs_status_t made = set.ok() ? ucp_init(&params, config, &context_) : UCS_OK;
  ucp_config_release(config);
  BATON_RETURN_IF_ERROR(set);
  BATON_RETURN_IF_ERROR(ToStatus(made, StrCat("context over ", options.transports)));
  LookForCuda(options);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_worker_create(context_, &worker_params, &worker_), "worker"));
  BATON_RETURN_IF_ERROR(ToStatus(ucp_worker_get_efd(worker_, &wait_fd_), "event descriptor"));
  ucp_address_t* bytes = nullptr;
  size_t size = 0;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_worker_get_address(worker_, &bytes, &size), "address"));
  address_.worker.assign(reinterpret_cast<const char*>(bytes), size);
  ucp_worker_release_address(worker_, bytes);
  address_.pid = getpid();
  address_.landing = options.landing;
  if (getrandom(&address_.incarnation, sizeof(uint64_t), 0) != sizeof(uint64_t))
    return absl::UnavailableError("no random numbers");
  return absl::OkStatus();
}

void Worker::LookForCuda(const UcxOptions& options) {
  if (options.lends == UcxLends::kHost) {
    lent_type_ = UCS_MEMORY_TYPE_HOST;
  } else if (options.lends == UcxLends::kNone) {
    lends_ = options.lends_not.empty() ? absl::UnimplementedError("it carries what is in the host's memory")
                                       : absl::FailedPreconditionError(options.lends_not);
  } else {
    ucp_context_attr_t attributes{};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    const ucs_status_t asked = ucp_context_query(context_, &attributes);
    if (asked != UCS_OK || (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0)
      lends_ = absl::FailedPreconditionError(StrCat("UCX ", UcxVersion(), " knows no CUDA memory here"));
  }
}

absl::StatusOr<ucp_mem_h> Worker::Map(std::span<std::byte> memory, unsigned access) {
  BATON_RETURN_IF_ERROR(lends_);
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = memory.data();
  params.length = memory.size();
  params.prot = access;
  params.memory_type = lent_type_;
  ucp_mem_h handle = nullptr;
  const absl::Status mapped =
      ToStatus(ucp_mem_map(context_, &params, &handle), StrCat(memory.size(), " bytes of a GPU's memory"));
  if (!mapped.ok()) return absl::FailedPreconditionError(mapped.message());
  mapped_.push_back(handle);
  return handle;
}

absl::StatusOr<std::string> Worker::KeyOf(ucp_mem_h memory) const { return PackedKeyOf(context_, memory); }

absl::Status Worker::MapLanding(const UcxOptions& options) {
  const size_t bytes = options.landing.slots * options.landing.slot_bytes;
  if (bytes == 0) return absl::OkStatus();
  for_each_peer_ = options.verb == UcxVerb::kPut && options.put_fence == FenceKind::kForcedClose;
  if (options.verb == UcxVerb::kMessage || for_each_peer_) {  // by messages we write it ourselves
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return absl::ResourceExhaustedError(StrCat(bytes, " bytes of landing memory: ", ErrnoText()));
    landing_ = {static_cast<std::byte*>(memory), bytes};
    own_memory_ = true;
    address_.memory = reinterpret_cast<uint64_t>(memory);
    return RegisterForPeer().status();  // what refuses it refuses it now
  }
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;  // UCX chooses: shared memory must be its own
  params.prot = kLandingAccess;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_mem_map(context_, &params, &memory_), StrCat(bytes, " bytes of landing memory")));
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_mem_query(memory_, &attributes), "landing memory"));
  landing_ = {static_cast<std::byte*>(attributes.address), bytes};
  std::memset(landing_.data(), 0, bytes);
  address_.memory = reinterpret_cast<uint64_t>(attributes.address);
  BATON_ASSIGN_OR_RETURN(address_.remote_key, PackedKeyOf(context_, memory_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Registration>> Worker::RegisterForPeer() {
  if (!for_each_peer_ || landing_.empty()) return std::unique_ptr<Registration>();
  return Registration::Of(context_, landing_, registrations_);
}

// One for each peer are as many for the device only where UCX keeps no cache of registrations, which would answer with
// the one that it has: LeaveMmapAlone leaves it none.
absl::StatusOr<std::unique_ptr<Registration>> Registration::Of(ucp_context_h context, std::span<std::byte> memory,
                                                               int& count) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = memory.data();
  params.length = memory.size();
  params.prot = kLandingAccess;
  ucp_mem_h handle = nullptr;
  BATON_RETURN_IF_ERROR(ToStatus(ucp_mem_map(context, &params, &handle), StrCat(memory.size(), " bytes for a peer")));
  std::unique_ptr<Registration> out(new Registration(context, handle, count));
  BATON_ASSIGN_OR_RETURN(out->key_, PackedKeyOf(context, handle));
  return out;
}

Registration::~Registration() {
  ucp_mem_unmap(context_, memory_);
  --count_;
}

Worker::~Worker() {
  if (own_memory_) munmap(landing_.data(), landing_.size());
  if (memory_ != nullptr) ucp_mem_unmap(context_, memory_);
  for (const ucp_mem_h mapped : mapped_) ucp_mem_unmap(context_, mapped);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace baton::ucx
