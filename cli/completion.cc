#include "cli/completion.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

std::vector<std::string> NamesOf(const CompletedCommand& command) {
  std::vector<std::string> names = command.words;
  for (const CompletedFlag& flag : command.flags) names.push_back(flag.name);
  return names;
}

// One word of a shell: in single quotes.
std::string Quote(std::string_view text) {
  return StrCat("'", absl::StrReplaceAll(AbslView(text), {{"'", "'\\''"}, {"\n", " "}}), "'");
}

std::string Bash(const std::vector<CompletedCommand>& commands) {
  std::string out =
      "# bash completion of baton; made by `baton completion bash`\n_baton() {\n"
      "  if [[ ${COMP_WORDS[1]} == config && ${COMP_WORDS[2]} == explain ]] && ((COMP_CWORD > 3)); then\n"
      "    local COMP_WORDS=(baton \"${COMP_WORDS[@]:3}\") COMP_CWORD=$((COMP_CWORD - 2))\n  fi\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
      "  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  COMPREPLY=()\n  if ((COMP_CWORD == 1)); then words=";
  std::vector<std::string> names;
  for (const CompletedCommand& c : commands) names.push_back(c.name);
  absl::StrAppend(&out, Quote(absl::StrJoin(names, " ")), "\n  else case ${COMP_WORDS[1]}:$before in\n");
  for (const CompletedCommand& c : commands) {
    for (const CompletedFlag& flag : c.flags) {
      if (!flag.values.empty())
        absl::StrAppend(&out, "    ", c.name, ":", flag.name, ") words=", Quote(absl::StrJoin(flag.values, " ")),
                        " ;;\n");
    }
    std::vector<std::string> taking;
    for (const CompletedFlag& flag : c.flags) {
      if (flag.takes_value && flag.values.empty()) taking.push_back(StrCat(c.name, ":", flag.name));
    }
    if (!taking.empty()) absl::StrAppend(&out, "    ", absl::StrJoin(taking, "|"), ") ;;\n");
    absl::StrAppend(&out, "    ", c.name, ":*) words=", Quote(absl::StrJoin(NamesOf(c), " ")), " ;;\n");
  }
  absl::StrAppend(&out,
                  "  esac; fi\n  [[ $words && ! ( $words == -* && $word != -* && $word ) ]] && "
                  "COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
                  "complete -o default -o bashdefault -F _baton baton\n");
  return out;
}

std::string Zsh(const std::vector<CompletedCommand>& commands) {
  std::string out = "#compdef baton\n# zsh completion of baton; made by `baton completion zsh`\n_baton() {\n";
  absl::StrAppend(&out, "  local -a commands=(\n");
  const auto plain = [](std::string_view help) {
    return absl::StrReplaceAll(AbslView(help), {{"[", "("}, {"]", ")"}, {":", " "}, {"'", "’"}, {"\\", ""}});
  };
  for (const CompletedCommand& c : commands)
    absl::StrAppend(&out, "    ", Quote(StrCat(c.name, ":", plain(c.help))), "\n");
  absl::StrAppend(&out,
                  "  )\n  if [[ $words[2] == config && $words[3] == explain ]] && ((CURRENT > 4)); then shift 2 words; "
                  "((CURRENT -= 2)); fi\n  if ((CURRENT == 2)); then _describe command commands; return; fi\n  case "
                  "$words[2] in\n");
  for (const CompletedCommand& c : commands) {
    absl::StrAppend(&out, "    ", c.name, ") shift words; ((CURRENT--)); _arguments");
    for (const CompletedFlag& flag : c.flags) {
      const std::string value = !flag.takes_value     ? ""
                                : flag.values.empty() ? ":value:_files"
                                                      : StrCat(":value:(", absl::StrJoin(flag.values, " "), ")");
      absl::StrAppend(&out, " \\\n      ",
                      Quote(StrCat(flag.name, flag.takes_value ? "=" : "", "[", plain(flag.help), "]", value)));
    }
    absl::StrAppend(&out, " \\\n      ",
                    c.words.empty() ? "'*:file:_files'" : Quote(StrCat("*:what:(", absl::StrJoin(c.words, " "), ")")),
                    " ;;\n");
  }
  // A file of $fpath is the function itself; one that is sourced says for whom it is.
  return out +
         "  esac\n}\nif [[ $funcstack[1] == _baton ]]; then _baton \"$@\"; elif (($+functions[compdef])); then compdef "
         "_baton baton; fi\n";
}

std::string Fish(const std::vector<CompletedCommand>& commands) {
  std::string out = "# fish completion of baton; made by `baton completion fish`\n";
  for (const CompletedCommand& c : commands) {
    absl::StrAppend(&out, "complete -c baton -n __fish_use_subcommand -f -a ", c.name, " -d ", Quote(c.help), "\n");
    const std::string of = StrCat("complete -c baton -n '__fish_seen_subcommand_from ", c.name, "'");
    if (!c.words.empty()) absl::StrAppend(&out, of, " -f -a ", Quote(absl::StrJoin(c.words, " ")), "\n");
    for (const CompletedFlag& flag : c.flags) {
      const std::string value = !flag.takes_value     ? ""
                                : flag.values.empty() ? " -r"
                                                      : StrCat(" -x -a ", Quote(absl::StrJoin(flag.values, " ")));
      absl::StrAppend(&out, of, " -l ", flag.name.substr(2), value, " -d ", Quote(flag.help), "\n");
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> ValuesOfHelp(std::string_view help) {
  const size_t open = help.rfind('[');
  if (open == std::string_view::npos || !help.ends_with(']')) return {};
  std::vector<std::string> values;
  for (const absl::string_view part : absl::StrSplit(AbslView(help.substr(open + 1, help.size() - open - 2)), " | ")) {
    const std::string name(part.substr(0, part.find(':')));
    if (name.empty() || name.find_first_of(" …") != std::string::npos) return {};
    values.push_back(name);
  }
  return values.size() > 1 ? values : std::vector<std::string>{};
}

absl::StatusOr<std::string> CompletionScript(std::string_view shell, const std::vector<CompletedCommand>& commands) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return absl::InvalidArgumentError(StrCat("\"", shell, "\" is no shell that is known here: bash, zsh, fish"));
}

}  // namespace baton::cli
