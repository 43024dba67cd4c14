// A connection's frames on a socket pair: how many calls of the system they take, and that a stream cut anywhere is the
// same stream. A SOCK_SEQPACKET socket shows calls: what one write gave one read takes, and a read that asks for less
// loses the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kvtransfer/tcp/connection.h"

namespace baton::tcp {
namespace {

using ::testing::ElementsAreArray;

constexpr size_t kSlotBytes = 40000;

/// Notes messages, keeps the bytes of slot 0 and throws those of others away.
class Listener final : public Connection::Sink {
 public:
  absl::Status Admit(Connection&, const FrameHeader&) override { return absl::OkStatus(); }
  absl::Status OnFrame(Connection&, const FrameHeader& header, std::string_view payload) override {
    if (header.kind == FrameKind::kHello) return absl::OkStatus();
    messages.emplace_back(payload);
    return absl::OkStatus();
  }
  std::byte* PlaceFor(Connection&, const FrameHeader& header) override {
    return header.slot == 0 ? slot.data() : nullptr;
  }
  std::vector<std::string> messages;
  std::vector<std::byte> slot = std::vector<std::byte>(kSlotBytes);
};

/// One end is a connection, the other one a plain socket.
struct ConnectionEnd {
  explicit ConnectionEnd(int kind) {
    int both[2];
    EXPECT_EQ(socketpair(AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both), 0);
    other = both[1];
    connection = std::make_unique<Connection>(1, both[0], /*connecting=*/false);
  }
  ~ConnectionEnd() { close(other); }
  void Pump() {
    bool moved = false;
    EXPECT_TRUE(connection->Pump(heard, moved).ok());
  }
  void Say(std::string_view bytes) { EXPECT_EQ(send(other, bytes.data(), bytes.size(), 0), std::ssize(bytes)); }
  /// What one write gave, or what is there; empty: nothing.
  std::string Take() {
    std::string bytes(1 << 20, '\0');
    const ssize_t got = recv(other, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  Listener heard;
  int other = -1;
  std::unique_ptr<Connection> connection;
};

std::string Frame(FrameHeader header, std::string_view payload) {
  header.payload_bytes = payload.size();
  Seal(header);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)).append(payload);
}

std::string Message(std::string_view payload) { return Frame({.kind = FrameKind::kMessage}, payload); }

TEST(TcpConnection, FramesThatWaitGoSixteenWithOneWriteInTheirOrder) {
  ConnectionEnd end(SOCK_SEQPACKET);
  std::string first, rest;
  std::vector<int> done;
  for (int i = 0; i < 20; ++i) {
    const std::string text(static_cast<size_t>(i * 7), static_cast<char>('a' + i));
    (i < 16 ? first : rest) += Message(text);
    end.connection->QueueOwned({.kind = FrameKind::kMessage}, text, [&done, i](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      done.push_back(i);
    });
  }
  end.Pump();
  EXPECT_EQ(end.Take(), first);
  EXPECT_EQ(end.Take(), rest);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.size(), 20u);
}

TEST(TcpConnection, MessagesThatCameTogetherAreReadTogether) {
  ConnectionEnd end(SOCK_SEQPACKET);
  end.Say(Frame({.kind = FrameKind::kHello}, ""));
  end.Pump();
  std::string together;
  std::vector<std::string> said;
  for (int i = 0; i < 20; ++i) together += Message(said.emplace_back(std::string(static_cast<size_t>(i * 7), 'x')));
  ASSERT_LE(together.size(), 4096u);
  end.Say(together);
  end.Pump();
  EXPECT_THAT(end.heard.messages, ElementsAreArray(said));
}

TEST(TcpConnection, WhoSaysMuchLeavesOthersTheirTurn) {
  ConnectionEnd end(SOCK_STREAM);
  constexpr size_t kAll = 1000;
  std::string all = Frame({.kind = FrameKind::kHello}, "");
  for (size_t i = 0; i < kAll; ++i) all += Message("a");
  end.Say(all);
  end.Pump();
  const size_t in_a_turn = end.heard.messages.size();
  EXPECT_GT(in_a_turn, 0u);
  EXPECT_LT(in_a_turn, kAll / 2);
  while (end.heard.messages.size() < kAll) {
    const size_t before = end.heard.messages.size();
    end.Pump();
    ASSERT_GT(end.heard.messages.size(), before);
  }
}

/// Whoever knows no more than our address has this much read and no more.
TEST(TcpConnection, OfAStrangerNothingIsReadBehindTheFirstHeader) {
  ConnectionEnd end(SOCK_STREAM);
  FrameHeader header{.kind = FrameKind::kHello, .payload_bytes = 8};
  header.magic ^= 1;
  end.Say(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "and more");
  bool moved = false;
  EXPECT_EQ(end.connection->Pump(end.heard, moved).code(), absl::StatusCode::kDataLoss);
  char left[100];
  EXPECT_EQ(recv(end.connection->socket(), left, sizeof(left), 0), 8);
}

TEST(TcpConnection, ADoneMayQueueMoreWhileOthersOfTheSameWriteStillWait) {
  ConnectionEnd end(SOCK_STREAM);
  std::vector<int> done;
  for (int i = 0; i < 5; ++i) {
    end.connection->QueueOwned({}, "early", [&, i](const absl::Status&) {
      done.push_back(i);
      end.connection->QueueOwned({}, "late", [&, i](const absl::Status&) { done.push_back(10 + i); });
    });
  }
  end.Pump();
  EXPECT_THAT(done, ElementsAreArray({0, 1, 2, 3, 4, 10, 11, 12, 13, 14}));
}

/// By one end as it reads, and by the other in pieces of random lengths.
TEST(TcpConnection, AStreamCutAnywhereIsTheSameStream) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    const size_t longest = size_t{1} << (1 + below(16));  // piece
    const size_t large = longest < 256 ? 2000 : kSlotBytes;
    std::string stream = Frame({.kind = FrameKind::kHello}, "hello");
    std::vector<std::string> said;
    std::string last_slot;
    for (size_t frames = 3 + below(60); frames > 0; --frames) {
      const size_t bytes = below(4) == 0 ? below(large) : below(300);
      const std::string payload(bytes, static_cast<char>('a' + below(26)));
      const uint32_t slot = below(2) == 0;
      if (below(3) > 0) {
        stream += Message(said.emplace_back(payload));
      } else {
        stream += Frame({.kind = FrameKind::kWrite, .slot = slot}, payload);
        if (slot == 0) last_slot = payload + last_slot.substr(std::min(bytes, last_slot.size()));
      }
    }
    ConnectionEnd end(SOCK_STREAM);
    for (std::string_view rest = stream; !rest.empty();) {
      const size_t part = std::min(rest.size(), 1 + below(longest));
      end.Say(rest.substr(0, part));
      rest.remove_prefix(part);
      if (longest > 4096 || below(3) > 0) end.Pump();  // else it lies there, with what comes next
    }
    for (int i = 0; i < 4; ++i) end.Pump();
    ASSERT_EQ(end.heard.messages, said) << "seed " << seed;
    ASSERT_EQ(std::memcmp(end.heard.slot.data(), last_slot.data(), last_slot.size()), 0) << "seed " << seed;
  }
}

/// The other side takes little at a time: a write ends within headers and within payloads.
TEST(TcpConnection, AWriteThatEndsWithinAFrameGoesOnThere) {
  ConnectionEnd end(SOCK_STREAM);
  const int small = 4096;
  setsockopt(end.connection->socket(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  std::mt19937 random(7);
  std::string all, got;
  std::vector<std::byte> slot(30001, std::byte{'s'});
  size_t done = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string text(random() % 500, static_cast<char>('a' + i % 26));
    all += Message(text);
    end.connection->QueueOwned({.kind = FrameKind::kMessage}, text, [&](const absl::Status&) { ++done; });
    if (i % 20 != 0) continue;
    all += Frame({.kind = FrameKind::kWrite, .slot = 3}, {reinterpret_cast<const char*>(slot.data()), slot.size()});
    end.connection->Queue({.kind = FrameKind::kWrite, .slot = 3}, slot, [&](const absl::Status&) { ++done; });
  }
  for (int i = 0; i < 1000 && got.size() < all.size(); ++i) end.Pump(), got += end.Take();
  EXPECT_TRUE(got == all);
  EXPECT_EQ(done, 210u);
  EXPECT_FALSE(end.connection->wants_write());
}

}  // namespace
}  // namespace baton::tcp
