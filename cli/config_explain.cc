#include "cli/config_explain.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/exit_code.h"
#include "cli/process_flags.h"
#include "cli/serve_config.h"
#include "cli/vllm_flags.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

struct Row {
  std::string flag, value, from;
};

// Everybody who looks over a shoulder can read a screen.
std::string ShownValue(const Flag& flag, const std::vector<std::string>& values) {
  if (flag.name == "api-key" && !values.empty()) return absl::StrFormat("(%d, not shown)", values.size());
  const std::string text = absl::StrJoin(values, " ");
  return text.empty() ? "\"\"" : text;
}

Row RowOf(const FlagSet& set, const Flag& flag) {
  const auto layers = set.layers().find(flag.name);
  Row row{flag.name, flag.text().empty() && flag.default_text.empty() ? "-" : ShownValue(flag, {flag.text()}),
          "default"};
  if (layers == set.layers().end()) {
    if (flag.text() != flag.default_text) row.from = "follows another flag";
    return row;
  }
  row.value = ShownValue(flag, layers->second.back().values);
  row.from = layers->second.back().source;
  for (size_t i = layers->second.size() - 1; i-- > 0;) {
    const GivenLayer& beaten = layers->second[i];
    absl::StrAppend(&row.from, ", over ", ShownValue(flag, beaten.values), " of ", beaten.source);
  }
  return row;
}

// Of `prefill.max-num-seqs` what `max-num-seqs` is for all workers, where nothing is said for one role.
Row RowOfRole(const FlagSet& set, const Flag& flag) {
  const size_t dot = flag.name.find('.');
  if (dot == std::string::npos || set.layers().contains(flag.name)) return RowOf(set, flag);
  const std::string for_all = flag.name.substr(dot + 1);
  const auto common = std::ranges::find(set.flags(), for_all, &Flag::name);
  if (common == set.flags().end() || !set.layers().contains(for_all)) return RowOf(set, flag);
  Row row = RowOf(set, *common);
  row.flag = flag.name;
  row.from = "as " + for_all;
  return row;
}

std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(AbslView(text), {{"|", "\\|"}, {"<", "&lt;"}, {"\n", " "}});
}

template <class Config>
void AddTable(const std::string& heading, const std::string& what, const std::vector<std::string>& without,
              std::string& page) {
  Config config;
  FlagSet set;
  set.Add(config, heading, without);
  absl::StrAppend(&page, "\n## ", heading, "\n\n", what, "\n\n| flag | default | what |\n|---|---|---|\n");
  for (const Flag& flag : set.flags()) {
    const std::string unit = flag.unit.empty() || flag.is_bool ? "" : StrCat(" ", flag.unit);
    const std::string name =
        StrCat("--", flag.is_auto || (flag.is_bool && flag.default_text == "true") ? "[no-]" : "", flag.name);
    const std::string value = flag.default_text.empty() ? "" : StrCat("`", flag.default_text, "`");
    absl::StrAppend(&page, "| `", name, "`", unit, flag.is_list ? ", repeatable" : "", " | ", value, " | ",
                    Cell(flag.help), " |\n");
  }
}

std::string WhatBecomesOf(const VllmFlag& flag) {
  if (!flag.becomes.empty()) return StrCat("is `--", flag.becomes, "`");
  if (flag.same == "*") return "changes nothing";
  std::vector<std::string> taken = absl::StrSplit(AbslView(flag.same), ' ', absl::SkipEmpty());
  if (taken.empty() && flag.values != Values::kNone) return "refused";
  if (taken.empty()) taken = {"false"};
  return StrCat("refused, but for `", absl::StrJoin(taken, "`, `"), "`");
}

void AddVllmTable(std::string& page) {
  absl::StrAppend(
      &page,
      "\n## vLLM's\n\n"
      "Flags of vLLM's servers that are not above are understood all the same, on the command line, as variables "
      "(`BATON_SWAP_SPACE`)\nand in a file, with `no-` before them and for the workers of one role. So are `-tp`, "
      "`-pp`, "
      "`-dp`, `-q`, `-O`, `-n` and `-r`,\n`--flag True`, `--hf-overrides.key 1` for `--hf-overrides '{\"key\": 1}'` "
      "and, once "
      "the model is named, `--served-model-name A B C`.\n\n"
      "| flag | what becomes of it | why |\n|---|---|---|\n");
  for (const VllmFlag& flag : VllmFlags())
    absl::StrAppend(&page, "| `--", AbslView(flag.name), "` | ", Cell(WhatBecomesOf(flag)), " | ", Cell(flag.why),
                    " |\n");
}

}  // namespace

std::string ExplainText(const FlagSet& set) {
  std::vector<Row> rows{{"FLAG", "VALUE", "FROM"}};
  for (const Flag& flag : set.flags()) rows.push_back(RowOfRole(set, flag));
  int flag_width = 0, value_width = 0;
  for (const Row& row : rows) {
    flag_width = std::max(flag_width, static_cast<int>(row.flag.size()));
    value_width = std::max(value_width, std::min(32, static_cast<int>(row.value.size())));
  }
  std::string out;
  for (const Row& row : rows)
    absl::StrAppendFormat(&out, "%-*s  %-*s  %s\n", flag_width, row.flag, value_width, row.value, row.from);
  return out;
}

int Explain(const FlagSet& set) {
  std::fputs(ExplainText(set).c_str(), stdout);
  return set.status().ok() ? kExitOk : FailUsage(set.status());
}

std::string ReferencePage() {
  std::string page =
      "# Flags\n\n"
      "Every flag of `baton serve`, `router` and `worker`. `--max-num-seqs 8` is also the variable "
      "`BATON_MAX_NUM_SEQS=8` and the key\n"
      "`max-num-seqs: 8` of a `--config FILE.yaml`; a flag wins over a variable, a variable over the file. `_` may "
      "stand for `-`. Numbers\n"
      "take suffixes: 32k = 32,000, 32K = 32,768, 4G, 4GiB. `baton config explain serve …` says what is in force and "
      "where it came from,\n"
      "`baton help serve kv` shows the flags that have to do with a word, `baton completion bash` completes them.\n\n"
      "This page is made of the tables in the code: `baton config reference > docs/reference.md`.\n";
  AddTable<ServeConfig>(
      "serve",
      "Of `baton serve` alone. It takes the flags of a router and of workers, too; `--prefill.FLAG` and "
      "`--decode.FLAG` are of the workers of one role.",
      {}, page);
  AddTable<router::RouterConfig>("router", "Of `baton router`, and of `baton serve` but for `--worker`.", {}, page);
  AddTable<worker::WorkerConfig>(
      "worker", "Of `baton worker`, and of `baton serve` but for `--host`, `--port`, `--role` and `--worker-id`.", {},
      page);
  AddTable<ReadyConfig>("process", "Of all three.", {}, page);
  AddVllmTable(page);
  return page;
}

}  // namespace baton::cli
