#include "tests/engine/parallel/communicator_cases.h"

#include <cmath>
#include <cstring>
#include <random>

#include "common/status.h"

namespace baton::engine {
namespace {

std::span<std::byte> Bytes(std::vector<int32_t>& v) { return std::as_writable_bytes(std::span(v)); }
std::vector<int32_t> Numbers(int rank, size_t n) {
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i * 31 + static_cast<size_t>(rank) * 1000003);
  return out;
}
absl::Status Expect(bool ok, std::string_view what) {
  return ok ? absl::OkStatus() : absl::InternalError(AbslView(what));
}

absl::Status BroadcastGivesEverybodyTheRoots(std::unique_ptr<Communicator>& group) {
  for (int root = 0; root < group->size(); ++root) {
    for (const size_t n : {0, 1, 7, 100000}) {
      std::vector<int32_t> data = Numbers(group->rank(), n);
      BATON_RETURN_IF_ERROR(group->Broadcast(root, Bytes(data)));
      BATON_RETURN_IF_ERROR(Expect(data == Numbers(root, n), StrCat("broadcast of ", n, " from ", root)));
    }
  }
  return absl::OkStatus();
}

absl::Status AllGatherIsInRankOrder(std::unique_ptr<Communicator>& group) {
  for (const size_t n : {0, 1, 5, 300000}) {  // more than sockets hold: everybody sends and receives at once
    std::vector<int32_t> mine = Numbers(group->rank(), n), all(n * static_cast<size_t>(group->size()));
    BATON_RETURN_IF_ERROR(group->AllGather(Bytes(mine), Bytes(all)));
    for (int r = 0; r < group->size(); ++r) {
      const std::vector<int32_t> want = Numbers(r, n);
      BATON_RETURN_IF_ERROR(Expect(std::equal(want.begin(), want.end(), all.begin() + r * static_cast<ptrdiff_t>(n)),
                                   StrCat("rank ", r, "'s part of ", n)));
    }
  }
  return absl::OkStatus();
}

// Values of many sizes: another order of adding gives other bits.
std::vector<float> Floats(int rank, size_t n) {
  std::mt19937 rng(static_cast<unsigned>(rank) * 7 + 1);
  std::vector<float> out(n);
  for (float& x : out)
    x = std::ldexp(static_cast<float>(static_cast<int32_t>(rng())), static_cast<int>(rng() % 40) - 60);
  return out;
}

absl::Status TreeSumHasTheSameBitsEverywhere(std::unique_ptr<Communicator>& group) {
  for (const size_t n : {0, 1, 3, 511, 513, 20000}) {
    std::vector<std::vector<float>> all;
    for (int r = 0; r < group->size(); ++r) all.push_back(Floats(r, n));
    // Pairs of pairs, spelled out: (0 + 1) + (2 + 3).
    std::vector<float> want(n);
    for (size_t i = 0; i < n; ++i) want[i] = (all[0][i] + all[1][i]) + (all[2][i] + all[3][i]);
    std::vector<float> mine = all[static_cast<size_t>(group->rank())];
    BATON_RETURN_IF_ERROR(group->TreeAllReduce(mine));
    BATON_RETURN_IF_ERROR(Expect(n == 0 || std::memcmp(mine.data(), want.data(), n * 4) == 0, StrCat("sum of ", n)));
  }
  return absl::OkStatus();
}

absl::Status MessagesArriveInOrder(std::unique_ptr<Communicator>& group) {
  const int me = group->rank(), size = group->size(), next = (me + 1) % size, before = (me + size - 1) % size;
  for (const size_t n : {1, 0, 90000, 2}) {  // around the ring, rank 0 first
    std::vector<int32_t> out = Numbers(me, n), in(n);
    if (me == 0) BATON_RETURN_IF_ERROR(group->Send(next, Bytes(out)));
    BATON_RETURN_IF_ERROR(group->Recv(before, Bytes(in)));
    if (me != 0) BATON_RETURN_IF_ERROR(group->Send(next, Bytes(out)));
    BATON_RETURN_IF_ERROR(Expect(in == Numbers(before, n), StrCat(n, " numbers from ", before)));
  }
  return absl::OkStatus();
}

absl::Status EverythingMixes(std::unique_ptr<Communicator>& group) {
  for (int i = 0; i < 200; ++i) {
    std::vector<float> ones(static_cast<size_t>(i % 5), 1.0f);
    BATON_RETURN_IF_ERROR(group->TreeAllReduce(ones));
    for (const float x : ones) BATON_RETURN_IF_ERROR(Expect(x == static_cast<float>(group->size()), "sum of ones"));
    std::vector<int32_t> word = {group->rank()};
    if (group->rank() == 0) BATON_RETURN_IF_ERROR(group->Send(group->size() - 1, Bytes(word)));
    if (group->rank() == group->size() - 1) {
      BATON_RETURN_IF_ERROR(group->Recv(0, Bytes(word)));
      BATON_RETURN_IF_ERROR(Expect(word[0] == 0, "a word of rank 0"));
      word = {i};
    }
    BATON_RETURN_IF_ERROR(group->Broadcast(group->size() - 1, Bytes(word)));
    BATON_RETURN_IF_ERROR(Expect(word[0] == i, "the turn's number"));
  }
  return absl::OkStatus();
}

absl::Status CollectivesOfOneRank(std::unique_ptr<Communicator>& group) {
  std::vector<float> sum = {1.5f, -2.0f};
  BATON_RETURN_IF_ERROR(group->TreeAllReduce(sum));
  std::vector<int32_t> word = {7}, all = {0};
  BATON_RETURN_IF_ERROR(group->Broadcast(0, Bytes(word)));
  BATON_RETURN_IF_ERROR(group->AllGather(Bytes(word), Bytes(all)));
  return Expect(sum == std::vector<float>{1.5f, -2.0f} && all == word, "a group of one");
}

absl::Status ARankThatLeavesIsAnErrorForAll(std::unique_ptr<Communicator>& group) {
  BATON_RETURN_IF_ERROR(group->TreeAllReduce({}));
  if (group->rank() == 1) {
    group.reset();
    return absl::OkStatus();
  }
  std::vector<float> data(1000, 1.0f);
  const absl::Status first = group->TreeAllReduce(data);
  BATON_RETURN_IF_ERROR(Expect(absl::IsUnavailable(first), StrCat("a sum without rank 1: ", first.ToString())));
  std::vector<int32_t> word(1);
  for (int i = 0; i < 3; ++i) {
    BATON_RETURN_IF_ERROR(Expect(!group->Recv((group->rank() + 1) % group->size(), Bytes(word)).ok(), "a later Recv"));
    BATON_RETURN_IF_ERROR(Expect(!group->Broadcast(group->rank(), Bytes(word)).ok(), "a later Broadcast"));
  }
  return absl::OkStatus();
}

absl::Status DifferentLengthsAreAnErrorWithBothNumbers(std::unique_ptr<Communicator>& group) {
  std::vector<int32_t> data(group->rank() == 0 ? 5 : 6);
  const absl::Status status = group->rank() == 0 ? group->Send(1, Bytes(data)) : group->Recv(0, Bytes(data));
  if (group->rank() == 0) {  // it may have been sent before anybody looked; the next call says so at the latest
    return Expect(!status.ok() || !group->Recv(1, Bytes(data)).ok(), "rank 0 hears nothing of it");
  }
  const std::string text(status.message());
  return Expect(absl::IsInternal(status) && text.find("20") != text.npos && text.find("24") != text.npos, text);
}

absl::Status AbortEndsWhoWaits(std::unique_ptr<Communicator>& group) {
  std::vector<int32_t> word(1);
  if (group->rank() == 0) {
    group->Abort(absl::CancelledError("stopped by a test"));
    return Expect(absl::IsCancelled(group->Recv(1, Bytes(word))), "the call after Abort");
  }
  return Expect(!group->Recv(0, Bytes(word)).ok(), "a Recv from who aborted");
}

}  // namespace

const std::vector<CommunicatorCase>& CommunicatorCases() {
  static const std::vector<CommunicatorCase> cases = {
      {"BroadcastGivesEverybodyTheRoots", 3, BroadcastGivesEverybodyTheRoots},
      {"AllGatherIsInRankOrder", 4, AllGatherIsInRankOrder},
      {"TreeSumHasTheSameBitsEverywhere", 4, TreeSumHasTheSameBitsEverywhere},
      {"MessagesArriveInOrder", 3, MessagesArriveInOrder},
      {"EverythingMixes", 4, EverythingMixes},
      {"OneRankAloneIsAGroup", 1, CollectivesOfOneRank},
      {"ARankThatLeavesIsAnErrorForAll", 4, ARankThatLeavesIsAnErrorForAll},
      {"DifferentLengthsAreAnErrorWithBothNumbers", 2, DifferentLengthsAreAnErrorWithBothNumbers},
      {"AbortEndsWhoWaits", 2, AbortEndsWhoWaits},
  };
  return cases;
}

}  // namespace baton::engine
