#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "cli/environment.h"

namespace baton::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr wchar_t kReplacement = 0xfffd, kCtrlC = 3;
constexpr char32_t kMaxCodePoint = 0x10ffff;

// Bytes of standard input as they come, and why none came.
class ByteSource {
 public:
  explicit ByteSource(Interrupts& interrupts) : interrupts_(interrupts) {}

  /// nullopt: ended() says why.
  std::optional<unsigned char> Next() {
    if (at_ == size_ && !Fill()) return std::nullopt;
    return static_cast<unsigned char>(buffer_[at_++]);
  }
  /// One character of UTF-8; what is none is U+FFFD.
  std::optional<wchar_t> NextCharacter() {
    const std::optional<unsigned char> first = Next();
    if (!first || *first < 0x80) return first;
    const int more = *first >= 0xf0 ? 3 : *first >= 0xe0 ? 2 : *first >= 0xc0 ? 1 : 0;
    char32_t code = *first & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      const std::optional<unsigned char> next = Next();
      if (!next) return std::nullopt;
      if ((*next & 0xc0) != 0x80) {
        --at_;  // begins another character
        return kReplacement;
      }
      code = code << 6 | (*next & 0x3f);
    }
    return more == 0 || code > kMaxCodePoint ? kReplacement : static_cast<wchar_t>(code);
  }
  Input::Kind ended() const { return ended_; }

 private:
  bool Fill() {
    ended_ = Input::kEnd;
    if (const std::optional<int> signal = interrupts_.Wait(STDIN_FILENO)) {
      ended_ = *signal == SIGINT ? Input::kInterrupted : Input::kTerminated;
      return false;
    }
    const ssize_t n = read(STDIN_FILENO, buffer_, sizeof buffer_);
    at_ = 0;
    size_ = n > 0 ? static_cast<size_t>(n) : 0;
    return n > 0;
  }

  Interrupts& interrupts_;
  char buffer_[4096];
  size_t at_ = 0, size_ = 0;
  Input::Kind ended_ = Input::kEnd;
};

class PipeReader final : public LineEditor {
 public:
  explicit PipeReader(Interrupts& interrupts) : bytes_(interrupts) {}

  bool is_terminal() const override { return false; }

  Input Read() override {
    Input input{.kind = Input::kLine};
    std::optional<unsigned char> byte;
    while ((byte = bytes_.Next()) && *byte != '\n') input.text.push_back(static_cast<char>(*byte));
    const bool last_line = !byte && bytes_.ended() == Input::kEnd && !input.text.empty();
    if (!byte && !last_line) return {.kind = bytes_.ended()};
    return input;
  }

 private:
  ByteSource bytes_;
};

void AppendUtf8(wchar_t character, std::string& out) {
  const auto code = static_cast<char32_t>(character);
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out.push_back(static_cast<char>(((0xff << (7 - more)) & 0xff) | (code >> (6 * more))));
  for (int i = more - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
}

class TerminalEditor final : public LineEditor {
 public:
  TerminalEditor(Interrupts& interrupts, const std::string& prompt)
      : bytes_(interrupts), prompt_(prompt.begin(), prompt.end()) {
    std::setlocale(LC_CTYPE, "");  // widths of glyphs
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    pastes_ = Environment("TERM").value_or("dumb") != "dumb";
    editor_ = el_init("baton", stdin, stdout, stderr);
    history_ = history_winit();
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_GETCFN, &NextCharacter);
    el_wset(editor_, EL_PROMPT, &Prompt);
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_EDITOR, L"emacs");
    // Ctrl-C is a character while a line is edited: as a signal, the kernel might echo it after the line was given up.
    el_wset(editor_, EL_SETTY, L"-d", L"-isig", nullptr);
    el_wset(editor_, EL_ADDFN, L"baton-paste", L"pasted text", &Paste);
    el_wset(editor_, EL_ADDFN, L"baton-suspend", L"stop until the shell goes on", &Suspend);
    el_wset(editor_, EL_ADDFN, L"baton-newline", L"a line of the same message", &NewLine);
    for (const auto& [keys, command] : {std::pair{L"\033[200~", L"baton-paste"},
                                        {L"\033\r", L"baton-newline"},
                                        {L"\033\n", L"baton-newline"},
                                        {L"\033[3~", L"ed-delete-next-char"},
                                        {L"\033[H", L"ed-move-to-beg"},
                                        {L"\033[1~", L"ed-move-to-beg"},
                                        {L"\033OH", L"ed-move-to-beg"},
                                        {L"\033[F", L"ed-move-to-end"},
                                        {L"\033[4~", L"ed-move-to-end"},
                                        {L"\033OF", L"ed-move-to-end"},
                                        {L"^Z", L"baton-suspend"},
                                        {L"^R", L"em-inc-search-prev"},
                                        {L"^W", L"ed-delete-prev-word"}}) {
      el_wset(editor_, EL_BIND, keys, command, nullptr);
    }
  }
  ~TerminalEditor() override {
    history_wend(history_);
    el_end(editor_);
  }

  bool is_terminal() const override { return true; }

  Input Read() override {
    el_resize(editor_);
    el_wset(editor_, EL_PREP_TERM, 1);  // before the prompt: what is typed at once is not echoed by the kernel, too
    Send("\033[?2004h");
    int length = 0;
    const wchar_t* line = el_wgets(editor_, &length);
    Send("\033[?2004l");
    if (line == nullptr || length <= 0) {
      std::fputs(ended_ == Input::kInterrupted ? "^C\n" : "\n", stdout);
      std::fflush(stdout);
      return {.kind = ended_};
    }
    Input input{.kind = Input::kLine};
    for (int i = 0; i < length; ++i) AppendUtf8(line[i], input.text);
    if (input.text.ends_with('\n')) input.text.pop_back();
    HistEventW event;
    if (!input.text.empty()) history_w(history_, &event, H_ENTER, line);
    return input;
  }

 private:
  static TerminalEditor& Of(EditLine* editor) {
    void* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return *static_cast<TerminalEditor*>(self);
  }
  static wchar_t* Prompt(EditLine* editor) { return Of(editor).prompt_.data(); }

  // As libedit asks for it: 1 a character, 0 the end, -1 the line is given up.
  static int NextCharacter(EditLine* editor, wchar_t* out) {
    TerminalEditor& self = Of(editor);
    const std::optional<wchar_t> next = self.bytes_.NextCharacter();
    self.ended_ = next == kCtrlC && !self.in_paste_ ? Input::kInterrupted : self.bytes_.ended();
    if (!next) return self.ended_ == Input::kEnd ? 0 : -1;
    if (self.ended_ == Input::kInterrupted) return -1;
    *out = *next;
    return 1;
  }

  // Up to the mark that ends it, whatever lines it has; controls that a terminal would act on are left out.
  static unsigned char Paste(EditLine* editor, wint_t) {
    static constexpr std::wstring_view kEnd = L"\033[201~";
    std::wstring text;
    Of(editor).in_paste_ = true;
    for (wchar_t next = 0; !text.ends_with(kEnd) && el_wgetc(editor, &next) == 1;)
      text.push_back(next == L'\r' ? L'\n' : next);
    Of(editor).in_paste_ = false;
    if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
    while (text.ends_with(L'\n')) text.pop_back();
    std::erase_if(text, [](wchar_t c) { return (c < 32 && c != L'\n' && c != L'\t') || c == 127; });
    if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }
  static unsigned char Suspend(EditLine* editor, wint_t) {
    el_wset(editor, EL_PREP_TERM, 0);
    kill(0, SIGTSTP);
    el_wset(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }
  static unsigned char NewLine(EditLine* editor, wint_t) {
    return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
  }

  void Send(const char* sequence) {
    if (!pastes_) return;
    std::fputs(sequence, stdout);
    std::fflush(stdout);
  }

  ByteSource bytes_;
  std::wstring prompt_;
  Input::Kind ended_ = Input::kEnd;  ///< why the last line was not finished
  bool in_paste_ = false;
  bool pastes_ = false;  ///< the terminal marks where pasted text begins and ends
  EditLine* editor_ = nullptr;
  HistoryW* history_ = nullptr;
};

}  // namespace

std::unique_ptr<LineEditor> MakeLineEditor(Interrupts& interrupts, const std::string& prompt) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0)
    return std::make_unique<TerminalEditor>(interrupts, prompt);
  return std::make_unique<PipeReader>(interrupts);
}

}  // namespace baton::cli
