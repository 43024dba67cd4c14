// The command line of a bench program: `--name value` or `--name=value`, nothing unknown.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace baton::bench {

struct CommandLine {
  std::map<std::string, std::string> flags;  ///< by name without dashes
  std::vector<std::string> words;            ///< what is no flag
  std::string wrong;                         ///< empty: it was taken
};

/// `known`: names of flags, each of which wants a value. `words`: how many words there must be beside them.
inline CommandLine ReadCommandLine(const std::vector<std::string>& arguments, const std::vector<std::string>& known,
                                   size_t words = 0) {
  CommandLine out;
  for (size_t i = 0; i < arguments.size() && out.wrong.empty(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--")) {
      out.words.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (std::ranges::find(known, name) == known.end()) {
      out.wrong = "unknown flag --" + name;
    } else if (out.flags.contains(name)) {
      out.wrong = "--" + name + " is said twice";
    } else if (equals != std::string::npos) {
      out.flags[name] = word.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      out.flags[name] = arguments[++i];
    } else {
      out.wrong = "--" + name + " wants a value";
    }
  }
  if (out.wrong.empty() && out.words.size() != words)
    out.wrong = std::to_string(words) + " words beside flags are wanted, got " + std::to_string(out.words.size());
  return out;
}

/// Of a program that ends with 2 and a line on stderr where its command line is wrong.
class Flags {
 public:
  /// `usage`: what stands behind the program's name, as "MODEL [--threads N]".
  Flags(int argc, char** argv, std::vector<std::string> known, const std::string& usage = "", size_t words = 0)
      : program_(argv[0]), usage_(usage), known_(std::move(known)) {
    line_ = ReadCommandLine({argv + 1, argv + argc}, known_, words);
    if (!line_.wrong.empty()) Refuse(line_.wrong);
  }
  /// The value of --name, or `fallback`.
  std::string operator()(const std::string& name, const std::string& fallback = "") const {
    const auto found = line_.flags.find(name);
    return found == line_.flags.end() ? fallback : found->second;
  }
  double Number(const std::string& name, double fallback) const {
    const auto found = line_.flags.find(name);
    if (found == line_.flags.end()) return fallback;
    char* end = nullptr;
    const double value = std::strtod(found->second.c_str(), &end);
    if (found->second.empty() || *end != '\0') Refuse("--" + name + " is a number, got \"" + found->second + "\"");
    return value;
  }
  /// A whole number from 1 on.
  int Count(const std::string& name, int fallback) const {
    const double value = Number(name, fallback);
    if (value < 1 || value > 1e9 || value != static_cast<int>(value))
      Refuse("--" + name + " is a whole number from 1 on, got \"" + (*this)(name) + "\"");
    return static_cast<int>(value);
  }
  /// One of `values`, or empty when nothing is said.
  std::string OneOf(const std::string& name, const std::vector<std::string>& values) const {
    std::string value = (*this)(name), all;
    for (const std::string& one : values) all += " " + one;
    if (line_.flags.contains(name) && std::ranges::find(values, value) == values.end())
      Refuse("--" + name + " is one of" + all + ", got \"" + value + "\"");
    return value;
  }
  const std::string& word(size_t i) const { return line_.words[i]; }
  /// Says what is wrong and the usage, and ends the program.
  [[noreturn]] void Refuse(const std::string& wrong) const {
    std::string flags;
    for (const std::string& name : known_) flags += " [--" + name + " VALUE]";
    std::fprintf(stderr, "%s: %s\nusage: %s%s\n", program_.c_str(), wrong.c_str(), program_.c_str(),
                 usage_.empty() ? flags.c_str() : (" " + usage_).c_str());
    std::exit(2);
  }

 private:
  std::string program_, usage_;
  std::vector<std::string> known_;
  CommandLine line_;
};

}  // namespace baton::bench
