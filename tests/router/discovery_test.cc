// The cores of discovery: what a file, DNS answers and EndpointSlices say. The sources around them meet real servers in
// tests/cluster/test_discovery.py.
#include "router/discovery/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/str_cat.h"
#include "router/discovery/dns_answers.h"
#include "router/discovery/kubernetes_source.h"
#include "router/discovery/slice_book.h"
#include "router/discovery/workers_file.h"

namespace baton::router {

void PrintTo(const Endpoint& endpoint, std::ostream* to) {
  *to << endpoint.address << (endpoint.serving ? "" : " not serving") << (endpoint.terminating ? " terminating" : "");
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Endpoint Up(std::string address) { return {std::move(address)}; }
std::string Why(const absl::Status& status) { return std::string(status.message()); }

// ---- the file

TEST(WorkersFile, HasAWorkerALine) {
  const auto read =
      ParseWorkersFile("# prefill\n10.0.0.1:7000\n\n  [fd00::1]:7000 \t draining # soon\r\nd-0.example:1", "f");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->workers,
              ElementsAre(Up("10.0.0.1:7000"), Endpoint{"[fd00::1]:7000", true, true}, Up("d-0.example:1")));
  EXPECT_EQ(read->left_out, "");
}

TEST(WorkersFile, WithoutWorkersHasAComment) {
  EXPECT_TRUE(ParseWorkersFile("# none today\n", "f").value().workers.empty());
  for (const char* text : {"", "\n", "  \n\n"})
    EXPECT_THAT(Why(ParseWorkersFile(text, "f").status()), HasSubstr("f:1: is empty")) << text;
}

TEST(WorkersFile, AWrongLineIsNamed) {
  const std::pair<const char*, const char*> bad[] = {
      {"a:1\nb\n", "/etc/w:2: \"b\" is no address: the port is missing"},
      {"a:1 gone\n", "/etc/w:1: \"gone\" is unknown"},
      {"dns:///a:1\n", "/etc/w:1: "},
      {"{\"workers\": [\n", "/etc/w:1: "},
  };
  for (const auto& [text, why] : bad)
    EXPECT_THAT(Why(ParseWorkersFile(text, "/etc/w").status()), HasSubstr(why)) << text;
}

TEST(WorkersFile, AWorkerThatIsThereTwiceIsTakenOnceAndBothLinesAreNamed) {
  const auto read = ParseWorkersFile("a:1\nb:2\n\na:1\nc:3\n", "/etc/w");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->workers, ElementsAre(Up("a:1"), Up("b:2"), Up("c:3")));
  EXPECT_EQ(read->left_out, "/etc/w:4: a:1 is there already, in line 1; it is taken once");
  const auto drains = ParseWorkersFile("a:1\nb:2\na:1 draining\na:1\n", "/etc/w");
  ASSERT_TRUE(drains.ok()) << drains.status();
  EXPECT_THAT(drains->workers, ElementsAre(Endpoint{"a:1", true, true}, Up("b:2"))) << "one of its lines says so";
  EXPECT_THAT(drains->left_out, HasSubstr("; more such lines: 1"));
}

constexpr Duration kQuarter = std::chrono::milliseconds(250);

TEST(WholeFile, IsOneThatIsTheSameTwiceAndEndsWithANewline) {
  WholeFile file;
  TimePoint now{};
  EXPECT_FALSE(file.See("10.0.0.1:7000\n", false, now));
  EXPECT_TRUE(file.See("10.0.0.1:7000\n", false, now += kQuarter));
  EXPECT_FALSE(file.See("10.0.0.1:7000\n10.0", false, now += kQuarter));
  file.Gone();
  EXPECT_FALSE(file.See("10.0.0.1:7000\n", false, now += kQuarter)) << "it came back";
}

TEST(WholeFile, AnAddressWithoutItsNewlineMayBeHalfOfOne) {
  WholeFile file;
  TimePoint now{};
  EXPECT_FALSE(file.See("10.0.0.1:70", false, now));
  while (now - TimePoint{} < WholeFile::kStill - kQuarter)
    EXPECT_FALSE(file.See("10.0.0.1:70", false, now += kQuarter));
  EXPECT_FALSE(file.See("10.0.0.1:700", false, now += kQuarter)) << "its writer goes on";
  const TimePoint last = now;
  while (now - last < WholeFile::kStill - kQuarter) EXPECT_FALSE(file.See("10.0.0.1:700", false, now += kQuarter));
  EXPECT_TRUE(file.See("10.0.0.1:700", false, last + WholeFile::kStill)) << "its writer leaves newlines out";
}

TEST(WholeFile, OneThatWasRenamedIsWhole) {
  WholeFile file;
  TimePoint now{};
  EXPECT_FALSE(file.See("10.0.0.1:70", true, now));
  EXPECT_TRUE(file.See("10.0.0.1:70", true, now += kQuarter));
}

/// When a file that is another every 0.1 s is taken, of its first seconds; `grows`: by a line, else it is another's
/// address. Its looks are when it asks for them.
std::vector<TimePoint> TakenOf(bool renamed, bool grows, Duration seconds, Duration change) {
  WholeFile file;
  std::vector<TimePoint> taken;
  for (TimePoint now{}; now.time_since_epoch() < seconds; now += file.pause()) {
    const auto version = now.time_since_epoch() / change;
    std::string text = StrCat("10.0.0.1:", 7000 + version, "\n");
    if (grows) {
      text.clear();
      for (int i = 0; i <= version; ++i) absl::StrAppend(&text, "10.0.0.1:", 7000 + i, "\n");
    }
    if (file.See(text, renamed, now)) taken.push_back(now);
  }
  return taken;
}

TEST(WholeFile, OneThatNeverStandsStillIsTakenOnceASecond) {
  constexpr auto kSeconds = std::chrono::seconds(30);
  for (const bool renamed : {false, true}) {
    // So that no two looks a quarter of a second apart are of the same text.
    const auto taken = TakenOf(renamed, false, kSeconds, std::chrono::milliseconds(97));
    ASSERT_GE(taken.size(), 15u) << renamed;
    ASSERT_LE(taken.size(), 30u) << renamed;
    TimePoint last{};
    for (const TimePoint at : taken) {
      EXPECT_LE(at - last, std::chrono::milliseconds(1500)) << renamed;
      last = at;
    }
  }
}

TEST(WholeFile, OneThatChangesFasterThanAnybodyLooksIsTakenWhereItWasRenamed) {
  constexpr auto kSeconds = std::chrono::seconds(10);
  EXPECT_GE(TakenOf(true, false, kSeconds, std::chrono::milliseconds(3)).size(), 5u);
  EXPECT_THAT(TakenOf(false, false, kSeconds, std::chrono::milliseconds(3)), IsEmpty());
}

TEST(WholeFile, ALineAfterTheOtherIsNoOtherFile) {
  EXPECT_THAT(TakenOf(false, true, std::chrono::seconds(10), std::chrono::milliseconds(97)), IsEmpty());
}

// ---- the union

TEST(Discovery, AnAddressTakesRequestsWhereOneSourceSaysSo) {
  const Endpoint ends{"a:1", true, true};
  EXPECT_THAT(Union({{ends}, {Up("b:1"), Up("a:1")}}), ElementsAre(Up("a:1"), Up("b:1")));
  EXPECT_THAT(Union({{Up("a:1")}, {ends}}), ElementsAre(Up("a:1")));
  EXPECT_THAT(Union({{}, {ends}}), ElementsAre(ends));
}

class Scripted final : public EndpointSource {
 public:
  explicit Scripted(Tell& tell) : tell_(tell) {}
  const std::string& name() const override { return name_; }
  void Start(Tell tell) override { tell_ = std::move(tell); }

 private:
  const std::string name_ = "scripted";
  Tell& tell_;
};

TEST(Discovery, EachSourceReplacesItsOwnSetOnly) {
  EndpointSource::Tell one, two;
  std::vector<std::unique_ptr<EndpointSource>> sources;
  sources.push_back(std::make_unique<Scripted>(one));
  sources.push_back(std::make_unique<Scripted>(two));
  Discovery discovery({Up("listed:1")}, std::move(sources));
  std::vector<Endpoint> heard;
  discovery.Start([&](std::vector<Endpoint> all) { heard = std::move(all); });
  one({Up("a:1"), Up("b:1")});
  two({Up("c:1")});
  EXPECT_THAT(heard, ElementsAre(Up("listed:1"), Up("a:1"), Up("b:1"), Up("c:1")));
  one({});
  EXPECT_THAT(heard, ElementsAre(Up("listed:1"), Up("c:1")));
}

// ---- DNS

DnsAnswer Has(std::vector<std::string> addresses) { return {absl::OkStatus(), std::move(addresses), {}}; }
DnsAnswer Points(std::vector<DnsTarget> targets) { return {absl::OkStatus(), {}, std::move(targets)}; }
const DnsAnswer kNone{absl::NotFoundError("no such record"), {}, {}};
const DnsAnswer kDead{absl::UnavailableError("timeout"), {}, {}};

TEST(DnsAnswers, BothFamiliesCount) {
  DnsAnswers dns;
  dns.Targets({"w", 7});
  EXPECT_THAT(dns.Hosts(), ElementsAre("w"));
  dns.Addresses("w", Has({"10.0.0.2", "10.0.0.1"}), Has({"fd00::1"}));
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.1:7"), Up("10.0.0.2:7"), Up("[fd00::1]:7")));
  EXPECT_TRUE(dns.TakeTrouble().ok());
}

TEST(DnsAnswers, NoAnswerChangesNothing) {
  DnsAnswers dns;
  dns.Targets({"w", 7});
  dns.Addresses("w", Has({"10.0.0.1"}), Has({"fd00::1"}));
  for (const auto& [v4, v6] : {std::pair{kNone, kNone}, {kDead, kDead}, {kNone, kDead}, {kDead, kNone}}) {
    dns.Targets({"w", 7});
    dns.Addresses("w", v4, v6);
    EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.1:7"), Up("[fd00::1]:7")));
    EXPECT_FALSE(dns.TakeTrouble().ok());
  }
}

TEST(DnsAnswers, AFamilyThatNobodyAnswersForStaysAndOneThatIsEmptyGoes) {
  DnsAnswers dns;
  dns.Targets({"w", 7});
  dns.Addresses("w", Has({"10.0.0.1"}), Has({"fd00::1"}));
  dns.Addresses("w", Has({"10.0.0.9"}), kDead);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.9:7"), Up("[fd00::1]:7")));
  EXPECT_FALSE(dns.TakeTrouble().ok());
  dns.Addresses("w", Has({"10.0.0.9"}), kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.9:7")));
  EXPECT_TRUE(dns.TakeTrouble().ok());
}

TEST(DnsAnswers, SrvTargetsBringTheirPorts) {
  DnsAnswers dns;
  dns.Targets(Points({{"b", 8}, {"a", 7}, {"a", 9}, {"a", 7}}));
  EXPECT_THAT(dns.Hosts(), ElementsAre("a", "b"));
  dns.Addresses("a", Has({"10.0.0.1"}), kNone);
  dns.Addresses("b", Has({"10.0.0.2"}), kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.1:7"), Up("10.0.0.1:9"), Up("10.0.0.2:8")));
  dns.Targets(kDead);
  dns.Addresses("a", kDead, kDead);
  dns.Addresses("b", kNone, kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.1:7"), Up("10.0.0.1:9"), Up("10.0.0.2:8")));
  dns.Targets(Points({{"b", 8}}));
  dns.Addresses("b", Has({"10.0.0.3"}), kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.3:8")));
}

TEST(DnsAnswers, ATargetThatSaysThatThereIsNoneIsNone) {
  DnsAnswers dns;
  dns.Targets(Points({{".", 7}, {"a", 7}, {"", 7}, {"b", 0}}));
  EXPECT_THAT(dns.Hosts(), ElementsAre("a"));
  dns.Addresses("a", Has({"10.0.0.1"}), kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.0.0.1:7")));
  EXPECT_TRUE(dns.TakeTrouble().ok());
  dns.Targets(Points({{"", 0}}));
  EXPECT_THAT(dns.Hosts(), ElementsAre("a")) << "what was known stays";
  EXPECT_THAT(Why(dns.TakeTrouble()), HasSubstr("there is no such service"));
}

TEST(DnsAnswers, MoreThanAnyClusterHasAreNotKept) {
  DnsAnswers dns;
  std::vector<std::string> many;
  for (int i = 0; i < 1025; ++i) many.push_back(StrCat("10.0.", i / 256, ".", i % 256));
  dns.Targets(Points({{"a", 7}}));
  dns.Addresses("a", Has({"10.9.9.9"}), kNone);
  dns.Addresses("a", Has(many), kNone);
  EXPECT_THAT(dns.Endpoints(), ElementsAre(Up("10.9.9.9:7"))) << "what was known stays";
  EXPECT_THAT(Why(dns.TakeTrouble()), HasSubstr("a has 1025 addresses, at most 1024"));
  many.pop_back();
  std::vector<DnsTarget> targets;
  for (int host = 0; host < 20; ++host) targets.push_back({StrCat("h", host), static_cast<uint16_t>(100 + host)});
  dns.Targets(Points(targets));
  for (const DnsTarget& target : targets) dns.Addresses(target.host, Has(many), kNone);
  EXPECT_EQ(dns.Endpoints().size(), 16384u);
  EXPECT_THAT(Why(dns.TakeTrouble()), HasSubstr("more than 16384 addresses"));
}

// ---- EndpointSlices

std::string Pod(const std::string& address, const std::string& conditions = "", const std::string& uid = "") {
  return StrCat(R"({"addresses":[")", address, R"("],"conditions":{)", conditions, R"(},"targetRef":{"uid":")", uid,
                R"("}})");
}
std::string Slice(const std::string& name, const std::string& version, const std::string& pods,
                  const std::string& port = "grpc") {
  return StrCat(R"({"metadata":{"name":")", name, R"(","resourceVersion":")", version, R"("},"endpoints":[)", pods,
                R"(],"ports":[{"name":"http","port":1},{"name":")", port, R"(","port":7000}]})");
}
std::string List(const std::string& version, const std::string& slices, const std::string& next = "") {
  return StrCat(R"({"kind":"EndpointSliceList","metadata":{"resourceVersion":")", version, R"(","continue":")", next,
                R"("},"items":[)", slices, "]}");
}
std::string SliceEvent(const std::string& type, const std::string& object) {
  return StrCat(R"({"type":")", type, R"(","object":)", object, "}");
}

TEST(SliceBook, AListReplacesEverythingWhenItsLastPageIsHere) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("10", Slice("s1", "9", Pod("10.0.0.1")), "more")).ok());
  EXPECT_EQ(book.next_page(), "more");
  EXPECT_THAT(book.endpoints(), IsEmpty());
  EXPECT_EQ(book.resource_version(), "");
  ASSERT_TRUE(book.Page(List("10", Slice("s2", "8", Pod("fd00::1")))).ok());
  EXPECT_EQ(book.next_page(), "");
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.1:7000"), Up("[fd00::1]:7000")));
  EXPECT_EQ(book.resource_version(), "10");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("20", "")).ok());
  EXPECT_THAT(book.endpoints(), IsEmpty());
}

TEST(SliceBook, ConditionsSayWhoTakesRequests) {
  const std::tuple<const char*, bool, bool> cases[] = {
      {"", true, false},  // what is not said is ready
      {R"("ready":true)", true, false},
      {R"("ready":false)", false, false},
      {R"("ready":null,"serving":null,"terminating":null)", true, false},
      {R"("ready":false,"serving":true,"terminating":true)", true, true},
      {R"("ready":false,"serving":false,"terminating":true)", false, true},
      {R"("ready":false,"terminating":true)", true, true},
  };
  for (const auto& [conditions, serving, terminating] : cases) {
    SliceBook book("grpc");
    book.BeginList();
    ASSERT_TRUE(book.Page(List("1", Slice("s", "1", Pod("10.0.0.1", conditions)))).ok());
    EXPECT_THAT(book.endpoints(), ElementsAre(Endpoint{"10.0.0.1:7000", serving, terminating})) << conditions;
  }
}

TEST(SliceBook, EventsChangeOneSlice) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("1", Slice("s1", "1", Pod("10.0.0.1")))).ok());
  EXPECT_TRUE(book.Event(SliceEvent("ADDED", Slice("s2", "2", Pod("10.0.0.2")))).ok());
  EXPECT_TRUE(book.Event(SliceEvent("MODIFIED", Slice("s1", "3", Pod("10.0.0.3")))).ok());
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.2:7000"), Up("10.0.0.3:7000")));
  EXPECT_TRUE(book.Event(SliceEvent("DELETED", Slice("s2", "4", ""))).ok());
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.3:7000")));
  EXPECT_TRUE(book.Event(SliceEvent("BOOKMARK", R"({"metadata":{"resourceVersion":"9"}})")).ok());
  EXPECT_EQ(book.resource_version(), "9");
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.3:7000")));
}

TEST(SliceBook, GoneMeansThatItIsListedAgain) {
  SliceBook book("grpc");
  EXPECT_TRUE(absl::IsOutOfRange(book.Event(SliceEvent("ERROR", R"({"code":410,"message":"too old"})"))));
  EXPECT_TRUE(absl::IsUnavailable(book.Event(SliceEvent("ERROR", R"({"code":500,"message":"etcd"})"))));
  EXPECT_TRUE(absl::IsUnavailable(book.Event(SliceEvent("ERROR", "7"))));
}

TEST(SliceBook, WhatIsNoneChangesNothing) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("1", Slice("s1", "1", Pod("10.0.0.1")))).ok());
  for (const char* text :
       {"", "[]", "{}", "nul", R"({"items":[]})", R"({"items":7,"metadata":{"resourceVersion":"2"}})"}) {
    book.BeginList();
    EXPECT_TRUE(absl::IsInvalidArgument(book.Page(text))) << text;
  }
  for (const char* text : {"", "7", "{}", R"({"type":"ADDED","object":{}})", R"({"type":7})",
                           R"({"type":"NEWS","object":{"metadata":{"resourceVersion":"7","name":"s1"}}})"})
    EXPECT_TRUE(absl::IsInvalidArgument(book.Event(text))) << text;
  EXPECT_TRUE(
      book.Event(SliceEvent("ADDED", R"({"metadata":{"name":"odd","resourceVersion":"5"},"endpoints":7,"ports":{}})"))
          .ok());
  EXPECT_TRUE(
      book.Event(SliceEvent("ADDED", Slice("odder", "6", R"({"addresses":[7]},{"addresses":["no host/"]},7)"))).ok());
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.1:7000")));
}

// What copies a value calls itself once a level.
TEST(SliceBook, ADeepTextIsNoAnswerAndNotRecursedInto) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("1", Slice("s1", "1", Pod("10.0.0.1")))).ok());
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const char* member : {"ports", "endpoints"}) {
    const std::string slice = StrCat(R"({"metadata":{"name":"s2","resourceVersion":"2"},")", member, "\":", deep, "}");
    EXPECT_TRUE(absl::IsInvalidArgument(book.Event(SliceEvent("ADDED", slice)))) << member;
    EXPECT_TRUE(absl::IsInvalidArgument(book.Page(List("2", slice)))) << member;
  }
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.1:7000")));
}

TEST(SliceBook, AListThatNeverEndsIsGivenUp) {
  SliceBook book("grpc");
  book.BeginList();
  absl::Status page;
  int pages = 0;
  for (; page.ok() && pages < 2000; ++pages) page = book.Page(List("1", "", "more"));
  EXPECT_TRUE(absl::IsResourceExhausted(page)) << page;
  EXPECT_THAT(Why(page), HasSubstr("1001 pages"));
  EXPECT_THAT(Why(page), HasSubstr("at most 1000"));
  book.BeginList();
  EXPECT_TRUE(book.Page(List("2", Slice("s1", "1", Pod("10.0.0.1")))).ok()) << "the next list is a new one";
}

TEST(SliceBook, SlicesThatAreAddedWithoutEndAreRefused) {
  SliceBook book("grpc");
  absl::Status event;
  int added = 0;
  for (; event.ok() && added < 2000; ++added)
    event = book.Event(SliceEvent("ADDED", Slice(StrCat("s", added), "1", "")));
  EXPECT_TRUE(absl::IsResourceExhausted(event)) << event;
  EXPECT_THAT(Why(event), HasSubstr("1001 EndpointSlices, at most 1000"));
  EXPECT_TRUE(book.Event(SliceEvent("MODIFIED", Slice("s1", "2", Pod("10.0.0.1")))).ok()) << "a known one may change";
}

TEST(SliceBook, OnePodIsOneWorker) {
  SliceBook book("grpc");
  book.BeginList();
  const std::string up = R"("ready":true)", ends = R"("terminating":true)";
  ASSERT_TRUE(book.Page(List("1", StrCat(Slice("s4", "1", Pod("10.0.0.1", up, "x")), ",",
                                         Slice("s6", "1", Pod("fd00::1", up, "x")))))
                  .ok());
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("10.0.0.1:7000"))) << "a pod with two families";
  ASSERT_TRUE(book.Event(SliceEvent("MODIFIED", Slice("s4", "2", Pod("10.0.0.1", ends, "x")))).ok());
  EXPECT_THAT(book.endpoints(), ElementsAre(Up("[fd00::1]:7000")));
}

TEST(SliceBook, AServiceWithoutThePortIsNamed) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(List("1", Slice("decode-x", "1", Pod("10.0.0.1"), "metrics"))).ok());
  EXPECT_THAT(book.endpoints(), IsEmpty());
  EXPECT_THAT(Why(book.Trouble()), HasSubstr("decode-x has no port named \"grpc\" (its ports: http, metrics)"));
}

// ---- flags

TEST(KubernetesPlace, IsReadFromTheFlags) {
  const auto place = ParseKubernetesPlace("prod/decode", {"https://[fd00::1]:6443/", "", ""});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->name_space, "prod");
  EXPECT_EQ(place->service, "decode");
  EXPECT_EQ(place->port, "grpc");
  EXPECT_TRUE(place->api.tls);
  EXPECT_EQ(place->api.host, "fd00::1");
  EXPECT_EQ(place->api.host_header, "[fd00::1]:6443");
  EXPECT_EQ(ParseKubernetesPlace("a/b:rpc", {"https://api.example", "", ""})->port, "rpc");
  EXPECT_EQ(ParseKubernetesPlace("a/b", {"https://api.example", "", ""})->api.port, "443");
}

TEST(KubernetesPlace, AWrongFlagIsNamed) {
  for (const char* service : {"", "decode", "/decode", "prod/", "prod/De", "a/b:", "a:b/c", "a/b/c", "a/b?x"}) {
    const auto place = ParseKubernetesPlace(service, {"https://api.example", "", ""});
    EXPECT_THAT(Why(place.status()), HasSubstr("--workers-kubernetes")) << service;
  }
  for (const char* api : {"api.example", "ftp://api", "https://", "https://a b", "https://a:0", "https://a/b"})
    EXPECT_THAT(Why(ParseKubernetesPlace("a/b", {api, "", ""}).status()), HasSubstr("--kubernetes-api")) << api;
  EXPECT_THAT(Why(ParseKubernetesPlace("a/b", {"http://10.0.0.1", "", ""}).status()), HasSubstr("in the clear"));
  EXPECT_TRUE(ParseKubernetesPlace("a/b", {"http://127.0.0.1:8001", "", ""}).ok());
}

}  // namespace
}  // namespace baton::router
