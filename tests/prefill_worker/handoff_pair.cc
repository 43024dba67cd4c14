#include "tests/prefill_worker/handoff_pair.h"

#include <gtest/gtest.h>

#include <set>

#include "common/check.h"

namespace baton {
namespace {

constexpr int kPiece = 32, kSlotBytes = 2048;

engine::SteppedEngineOptions Worker(const PairOptions& o, int block, int blocks) {
  engine::SteppedEngineOptions options;
  options.layout = engine::FakeLayout(block, o.window);
  options.num_blocks.assign(options.layout.groups.size(), blocks);
  options.scheduler.max_model_len = 400;
  options.scheduler.max_step_ms = 0;
  options.scheduler.max_num_batched_tokens = o.chunk;
  options.scheduler.max_prefill_chunk = o.chunk_each;
  return options;
}

}  // namespace

struct HandoffPair::Client {
  v1::Attach attach;
  int attempt = -1;
  bool over = false;
  std::shared_ptr<worker::KeepingSink> sink;
  size_t heard = 0;
  std::map<uint32_t, std::vector<int32_t>> tokens;  ///< by choice
  std::set<uint32_t> open;                          ///< choices that have not ended
};

/// One attempt's prefill leg, as its caller hears of it.
struct HandoffPair::Leg final : prefill_worker::JobEvents {
  Leg(HandoffPair& p, Client& c) : pair(p), client(c), attempt(c.attempt) {}
  void OnPromptScores(const std::vector<kernels::SampleResult>&) override {}
  void OnEnd(const absl::Status& status, bool no_room, const std::vector<engine::SequenceOutput>& outputs) override {
    pair.decode_inbox_.push_back(
        [=, this, &p = pair, &c = client, a = attempt] { p.OnPrefilled(c, a, status, no_room, outputs); });
  }
  HandoffPair& pair;
  Client& client;
  const int attempt;
};

HandoffPair::HandoffPair(PairOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      prefill_(Worker(options_, options_.prefill_block, options_.prefill_blocks), &prefill_policy_),
      decode_(Worker(options_, options_.decode_block, options_.decode_blocks), &decode_policy_) {
  const KvSide prefill_side = worker::SideOf(prefill_.memory().layout()),
               decode_side = worker::SideOf(decode_.memory().layout());
  worker::WorkerConfig config;
  config.landing_slots = options_.landing_slots, config.landing_slot_bytes = kSlotBytes;
  if (options_.lent_buffers > 0) {
    prefill_mover_ = std::make_unique<HostMover>(kSlotBytes, options_.lent_buffers);
    decode_mover_ = std::make_unique<HostMover>(kSlotBytes, options_.lent_buffers);
  }
  if (options_.decode_on_device) decode_mover_ = std::make_unique<HostMover>(kSlotBytes, 1);
  landing_ = decode_worker::Landing::Create(config, worker::PoolOf(decode_.memory(), decode_mover_.get()), "d1", clock_,
                                            decode_loop_, to_decode_, options_.decode_transport)
                 .value();
  decode_worker::DeskFacts facts{.side = decode_side, .piece_tokens = kPiece, .incarnation = "d1", .model_digest = "m"};
  facts.handoff.ring_slots = {options_.landing_slots};
  facts.handoff.max_reserved_tokens = 5000;
  facts.handoff.max_quarantined_slots = options_.landing_slots;
  desk_ = std::make_unique<decode_worker::TicketDesk>(facts, *landing_, decode_loop_, clock_);
  decode_policy_.desk = desk_.get();
  book_ = std::make_unique<worker::RelayBook>(worker::AttachLimits{.vocab_size = engine::kFakeVocab}, desk_.get());
  desk_->SetRelay(book_.get()), desk_->Use(decode_.scheduler());
  LaneHello hello{.incarnation = "p1", .model_digest = "m", .side = prefill_side};
  sender_ = std::make_unique<prefill_worker::Sender>(
      prefill_worker::DialOptions{
          .host = "127.0.0.1", .kinds = {"sim", "tcp", "shm"}, .make = options_.prefill_transport, .self_test = false},
      kSlotBytes, worker::PoolOf(prefill_.memory(), prefill_mover_.get()), hello, clock_, prefill_loop_, to_prefill_);
  jobs_ = std::make_unique<prefill_worker::PrefillDesk>(prefill::PushOptions{.no_room_after = std::chrono::seconds(20)},
                                                        prefill_side, kSlotBytes, *sender_, prefill_loop_, clock_);
  jobs_->Use(prefill_.scheduler());
}

HandoffPair::~HandoffPair() { jobs_->LetGo(), desk_->LetGo(); }

// ---- turns

void HandoffPair::Turn() {
  const auto inbox = [](std::deque<std::function<void()>>& box) {
    if (box.empty()) return;
    const auto work = std::move(box.front());
    box.pop_front();
    work();
  };
  clock_.now += std::chrono::microseconds(50);
  switch (random_() % 8) {
    case 0: StepPrefill(); break;
    case 1: StepDecode(); break;
    case 2:
    case 3: prefill_loop_.Turn(); break;
    case 4:
    case 5: decode_loop_.Turn(); break;
    case 6: inbox(prefill_inbox_), inbox(prefill_inbox_); break;
    default: inbox(decode_inbox_), inbox(decode_inbox_);
  }
  if (random_() % 100 == 0) jobs_->Tick(), desk_->Tick(), CheckOwners();
  if (options_.cuts > 0 && !writers_.empty() && std::bernoulli_distribution(options_.cuts)(random_)) {
    landing_->Cut(writers_.back());
  }
  for (auto& client : clients_) Listen(*client);
}

void HandoffPair::StepPrefill() {
  engine::Scheduler& scheduler = prefill_.scheduler();
  const engine::StepPlan plan = scheduler.PlanStep(clock_.now);
  jobs_->OnOutputs(scheduler.TakeOutputs());
  if (plan.empty()) return;
  const auto result = prefill_.executor().Execute(plan);
  BATON_CHECK(result.ok());
  for (const KvGroup& group : prefill_.memory().layout().groups) {
    for (int layer : group.layers) {
      prefill_worker::LayerProgress progress{layer, {}};
      for (const engine::SequenceStep& step : plan.sequences) {
        if (step.num_tokens > 0)
          progress.rows.push_back({step.request_key, step.context, step.context + step.num_tokens});
      }
      jobs_->OnLayer(progress);
    }
  }
  jobs_->OnOutputs(scheduler.Commit(plan, *result, clock_.now));
}

void HandoffPair::StepDecode() {
  engine::Scheduler& scheduler = decode_.scheduler();
  const engine::StepPlan plan = scheduler.PlanStep(clock_.now);
  book_->OnOutputs(scheduler.TakeOutputs(), plan.step);
  if (plan.empty()) return;
  const auto result = decode_.executor().Execute(plan);
  BATON_CHECK(result.ok());
  book_->OnOutputs(scheduler.Commit(plan, *result, clock_.now), plan.step);
}

void HandoffPair::CheckOwners() {
  for (int32_t g = 0; g < decode_.cache().num_groups(); ++g) {
    BATON_CHECK(decode_.scheduler().OwnedBlocks(g) + desk_->OwnedBlocks(g) == decode_.cache().pool(g).total_owners(),
                "decode leaks");
    BATON_CHECK(prefill_.scheduler().OwnedBlocks(g) + jobs_->OwnedBlocks(g) == prefill_.cache().pool(g).total_owners(),
                "prefill leaks");
  }
  prefill_.scheduler().CheckInvariants(), decode_.scheduler().CheckInvariants();
}

// ---- the router

void HandoffPair::StartOver(Client& client) {
  ++client.attempt;
  restarts_ += client.attempt > 0;
  client.sink = std::make_shared<worker::KeepingSink>(), client.heard = 0;
  client.tokens.clear(), client.open.clear();
  const std::string id = client.attach.key().request_id();
  decode_inbox_.push_back([this, &client, id, attempt = client.attempt] {
    if (attempt > 0) desk_->Cancel({id, static_cast<uint32_t>(attempt - 1)});
    std::vector<int32_t> prompt(client.attach.prompt_token_ids().size() / 4);
    std::memcpy(prompt.data(), client.attach.prompt_token_ids().data(), prompt.size() * 4);
    const auto length = static_cast<int32_t>(prompt.size());
    const decode::ReserveAnswer answer = desk_->Reserve(
        {{id, static_cast<uint32_t>(attempt)}, "", std::move(prompt), length, std::chrono::seconds(30), "s"});
    answer.status.ok() ? SendPrefill(client, answer) : StartOver(client);
  });
}

void HandoffPair::SendPrefill(Client& client, const decode::ReserveAnswer& ticket) {
  v1::Ticket wire;
  wire.set_id(ticket.ticket), wire.set_incarnation("d1");
  wire.set_secret_high(ticket.secret.high), wire.set_secret_low(ticket.secret.low);
  client.attach.set_ticket(wire.SerializeAsString());
  prefill_worker::JobOrder order{.key = {client.attach.key().request_id(), static_cast<uint32_t>(client.attempt), 1}};
  v1::Attach plain = client.attach;
  plain.clear_ticket(), plain.clear_first(), plain.clear_position();
  order.request = worker::DecodeAttach(plain, {.vocab_size = engine::kFakeVocab}, 0, clock_.now).value();
  order.landing_address = landing_->address();
  order.ticket = ticket.ticket, order.secret = ticket.secret;
  order.target = worker::SideOf(decode_.memory().layout());
  order.cached_tokens = ticket.cached_tokens, order.piece_tokens = kPiece, order.slot_bytes = kSlotBytes;
  order.expiry = ticket.expiry;
  prefill_inbox_.push_back([this, order, leg = std::make_shared<Leg>(*this, client)] { jobs_->Begin(order, leg); });
}

void HandoffPair::OnPrefilled(Client& client, int attempt, const absl::Status& status, bool no_room,
                              const std::vector<engine::SequenceOutput>& first) {
  if (client.attempt != attempt) return;
  const bool failed = !status.ok() || no_room;
  if (failed && attempt < 3) return StartOver(client);
  v1::Attach attach = client.attach;
  attach.set_attach_gen(static_cast<uint64_t>(attempt) + 1);
  if (failed) {  // no prefill worker is left: decode computes it
    attach.set_position(attach.prompt_len());
    for (int i = 0; i < attach.sampling().n(); ++i) client.open.insert(static_cast<uint32_t>(i));
    return Attach(client, attach);
  }
  attach.mutable_key()->set_epoch(1);
  attach.set_position(attach.prompt_len() + 1);
  for (const engine::SequenceOutput& output : first) {
    v1::FirstToken& token = *attach.add_first();
    token.set_index(output.sequence_index), token.set_token_id(output.tokens.at(0).token);
    client.tokens[output.sequence_index].push_back(output.tokens[0].token);
    if (output.finish == engine::FinishReason::kHeld) {
      client.open.insert(output.sequence_index);
    } else {
      token.set_finish_reason(v1::FINISH_REASON_LENGTH);
    }
  }
  if (client.open.empty()) {
    client.over = true;
    desk_->Cancel({attach.key().request_id(), static_cast<uint32_t>(attempt)});
    return;
  }
  Attach(client, attach);
}

void HandoffPair::Attach(Client& client, const v1::Attach& attach) {
  v1::RelayUp up;
  *up.add_attach() = attach;
  book_->OnMessage(client.sink, up, decode_.scheduler(), clock_.now);
}

void HandoffPair::Listen(Client& client) {
  for (; !client.over && client.sink && client.heard < client.sink->messages.size(); ++client.heard) {
    for (const v1::RelayEntry& entry : client.sink->messages[client.heard].entries()) {
      if (entry.has_error()) return StartOver(client);
      for (int32_t token : entry.token_ids()) client.tokens[entry.index()].push_back(token);
      if (entry.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) client.open.erase(entry.index());
    }
    client.over = client.open.empty();
  }
}

std::map<uint32_t, std::vector<int32_t>> HandoffPair::Alone(const v1::Attach& attach) {
  PairOptions plain;
  plain.window = options_.window;
  engine::SteppedEngine one(Worker(plain, 16, 128));
  BATON_CHECK(one.Add(worker::DecodeAttach(attach, {.vocab_size = engine::kFakeVocab}, 1, one.now).value()).ok());
  one.RunAll();
  std::map<uint32_t, std::vector<int32_t>> tokens;
  for (const auto& [key, answer] : one.answers) {
    for (const kernels::SampleResult& token : answer.tokens) tokens[key.second].push_back(token.token);
  }
  return tokens;
}

void HandoffPair::Answer(const std::vector<v1::Attach>& attaches) {
  clients_.clear();
  for (const v1::Attach& attach : attaches) {
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->attach = attach;
  }
  for (auto& client : clients_) StartOver(*client);
  const auto waiting = [this] {
    return std::any_of(clients_.begin(), clients_.end(), [](const auto& c) { return !c->over; });
  };
  for (int turns = 0; waiting(); ++turns) {
    Turn();
    ASSERT_LT(turns, 3000000) << "no end; held: " << Holding();
  }
  for (const auto& client : clients_) {
    EXPECT_EQ(client->tokens, Alone(client->attach)) << client->attach.key().request_id() << ", seed " << options_.seed;
  }
}

std::string HandoffPair::Holding() {
  const decode::HandoffStats d = desk_->Stats();
  const prefill::PushStats p = jobs_->Stats();
  const int64_t blocks = prefill_.cache().pool(0).used_blocks() + decode_.cache().pool(0).used_blocks();
  if (d.tickets + d.granted_slots + d.quarantined_slots + d.reserved_tokens + p.open_lanes + p.held_sources + blocks ==
          0 &&
      jobs_->jobs() == 0)
    return "";
  return StrCat(d.tickets, " tickets, ", d.granted_slots, " + ", d.quarantined_slots, " slots, ", p.open_lanes,
                " lanes, ", jobs_->jobs(), " jobs, ", blocks, " blocks");
}

void HandoffPair::ExpectNothingHeld() {
  for (int turns = 0; turns < 200000 && !Holding().empty(); ++turns) Turn();
  EXPECT_EQ(Holding(), "") << "seed " << options_.seed;
  CheckOwners();
}

}  // namespace baton
