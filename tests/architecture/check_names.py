#!/usr/bin/env python3
"""Fails on two sources of one target that define the same name at file scope in the same namespace, or in one around it; and on
a source that defines a name of a header that another one includes.

CMake compiles the sources of a target in batches (cmake/fast_build.cmake), so a helper in an anonymous namespace, a static,
an alias or a macro is seen by the sources that come after it in the batch. Which sources share a batch changes with every source
that is added; so no two of a target may have the same name. That two overloads would be legal is no excuse: a call may mean the
other file's one and nobody is told. Which targets have batches is read from build.ninja (its Unity/unity_*.cxx). Their sources
with SKIP_UNITY_BUILD_INCLUSION count, too: most are compiled alone for a test only (baton_replaced), and in a batch where no
tests are built.

A name that a header of ours defines counts as one of each source that includes it, by itself or through others: in a batch the
sources behind it see it, too.

Not counted: functions with external linkage (overloads that headers declare), operators and functions that a library looks up by
name (they have no other name, and are told apart by their types), declarations, and aliases and using declarations that are word
for word the same.

usage: check_names.py BUILD_FOLDER      --self-test plants breaches and checks that each is found
"""
import collections
import functools
import pathlib
import re
import sys
import tempfile

from check_sizes import strip

Name = collections.namedtuple("Name", "namespace name kind text line")  # text: of an alias
ALIAS, FUNCTION, INTERNAL = "alias", "function", "internal"  # FUNCTION: with external linkage
FIXED = {"PrintTo", "VisitFields", "AbslHashValue", "AbslStringify", "swap"}  # looked up by the type of their argument
MACRO = "#define"  # the namespace of macros, which encloses all others
TYPE = re.compile(r"(class|struct|union|enum(?:\s+(?:class|struct))?)\b\s*([\w:]+(?<!:))?")
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)$")


def without_templates(head):
    """A declaration without its attributes and without template<…> in front of it; and whether it is a specialization."""
    head = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)|__attribute__\s*\(\(.*?\)\)", " ", head, flags=re.S).strip()
    special = False
    while match := re.match(r"template\s*<", head):
        depth, i = 1, match.end()
        special = special or head[i:].lstrip().startswith(">")
        while i < len(head) and depth:
            depth += {"<": 1, ">": -1}.get(head[i], 0)
            i += 1
        head = re.sub(r"^requires\s+[\w:]+\s*(<[^<>]*>)?\s+(?=\w)", "", head[i:].strip())
    return head, special


def before(head, stops):
    """The part of a head before the first of `stops` that is outside <…>, or None."""
    depth = 0
    for i, c in enumerate(head):
        if c in stops and depth == 0 and not head[:i].rstrip().endswith(("decltype", "noexcept", "__declspec")):
            return head[:i]
        if c == "<" and re.search(r"\w\s*$", head[:i]) and not head[:i].endswith("operator"):
            depth += 1
        elif c == ">" and depth and head[i - 1] != "-":
            depth -= 1
    return None


def last_name(part):
    """The identifier that a declarator ends with; None if it is qualified (it was declared elsewhere) or an operator."""
    match = re.search(r"(~?[\w:]+)\s*(\[[^\]]*\]\s*)*$", part)
    if not match or "::" in match[1] or "operator" in part or not re.match(r"[A-Za-z_]", match[1]):
        return None
    return match[1] if part[:match.start()].strip() else None  # nothing before it: a macro's use


def others(text):
    """The names after the first one of a declaration of several: what follows a comma outside of parentheses and braces."""
    depth = 0
    for i, c in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(c, 0)
        if c == "," and depth == 0 and (match := re.match(r"\s*[*&]?\s*(\w+)\s*(?=[={[,]|$)", text[i + 1:])):
            yield match[1]


class Reader:
    """Collects the names of one source."""

    def __init__(self, text):
        self.names = []
        code = strip(text)
        self.code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", self.directive, code, flags=re.M)
        for dropped in re.findall(r"^[ \t]*#\s*undef\s+(\w+)", code, re.M):
            self.names = [n for n in self.names if n.name != dropped]
        self.spaces, self.at = [], 0  # of every open namespace: its name, "" without one, None for extern "C"
        while self.at < len(self.code):
            self.statement()

    def directive(self, match):
        if define := re.match(r"\s*#\s*define\s+(\w+)", match[0]):
            self.names.append(Name(MACRO, define[1], INTERNAL, "", self_line(match.string, match.start())))
        return re.sub(r"[^\n]", " ", match[0])

    def add(self, name, kind, text=""):
        if name:
            space = "::".join(s for s in self.spaces if s)
            internal = "" in self.spaces and kind == FUNCTION
            line = self_line(self.code, self.start)
            self.names.append(Name(space, name, INTERNAL if internal else kind, " ".join(text.split()), line))

    def body(self):
        """Moves behind the brace that closes the one before `at`, and returns what is between them."""
        depth, start = 1, self.at
        while self.at < len(self.code) and depth:
            depth += {"{": 1, "}": -1}.get(self.code[self.at], 0)
            self.at += 1
        return self.code[start:self.at - 1]

    def statement(self):
        """One declaration of a namespace, or the opening or closing of one."""
        start, depth = self.at, 0
        self.start = start + len(self.code[start:]) - len(self.code[start:].lstrip())
        while self.at < len(self.code):
            c = self.code[self.at]
            depth += {"(": 1, ")": -1}.get(c, 0)
            if depth == 0 and c in ";{}":
                break
            if depth and c == "{":  # a lambda or a list among arguments
                self.at += 1
                self.body()
                continue
            self.at += 1
        end = self.code[self.at:self.at + 1]
        head, special = without_templates(self.code[start:self.at])
        self.at += 1
        if end == "}":
            if self.spaces:
                self.spaces.pop()
        elif end == ";":
            self.plain(head, special)
        elif end == "{":
            self.braced(head, special)

    def plain(self, head, special):
        if match := re.match(r"(?:using|namespace)\s+(\w+)\s*=", head):
            self.add(match[1], ALIAS, head)
        elif match := re.match(r"using\s+(?!namespace\b)(?:::)?([\w:]*::(\w+))$", head):
            self.add(match[2], ALIAS, match[1])
        elif match := re.match(r"typedef\b.*?(\w+)$", head, re.S):
            self.add(match[1], ALIAS, head)
        elif not special and not re.match(r"(extern|using|friend|static_assert|template|class|struct|union|enum)\b", head):
            value = before(head, "=(")
            if value is None and re.match(r"[\w:<>,*&\s\[\]]+$", head):
                value = before(head, ",") or head
            elif value is None or head[len(value)] == "(":
                return
            self.variables(last_name(value), head[len(value):])

    def variables(self, first, behind):
        for name in (first, *others(behind)):
            self.add(name, INTERNAL)

    def braced(self, head, special):
        if match := re.match(r"(?:inline\s+)?namespace\b\s*([\w:]*)$", head):
            self.spaces.append(match[1])
            return
        if re.match(r'extern(\s*"?C"?)?\s*$', head):
            self.spaces.append(None)
            return
        called = before(head, "(=")
        match = TYPE.match(re.sub(r"^(?:static|constexpr|const|typedef|inline)\s+", "", head))
        inside = self.body()
        if head.startswith((",", ":", "concept")) or not head:  # what follows {} in a constructor's list
            return
        if match and (called is None or head[len(called)] != "("):
            self.type(match, inside, special)
        elif test := TEST.match(head):
            self.add(f"{test[1]}_{test[2]}_Test", INTERNAL)
        elif called is not None and head[len(called)] == "(":
            if not special:
                self.add(last_name(called), INTERNAL if re.match(r"static\b|(?:\w+ )?static\b", head) else FUNCTION)
        else:
            self.variables(None if special else last_name(called if called is not None else head), self.rest())

    def type(self, match, inside, special):
        if not special and match[2] and "::" not in match[2]:
            self.add(match[2], INTERNAL)
        if match[1] == "enum":
            for enumerator in re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\([^()]*\)", "", inside)):
                self.add(enumerator, INTERNAL)
        if variable := re.match(r"\W*(\w+)", self.rest()):
            self.add(variable[1], INTERNAL)

    def rest(self):
        """What is between a closing brace and the end of its declaration."""
        start = self.at
        while self.at < len(self.code) and self.code[self.at] != ";":
            self.at += 1
            if self.code[self.at - 1] == "{":
                self.body()
        self.at += 1
        return self.code[start:self.at - 1]


def self_line(text, at):
    return text.count("\n", 0, at) + 1


def encloses(outer, inner):
    return outer in (MACRO, "", inner) or inner.startswith(outer + "::")


def same(a, b):
    """Two aliases of one thing, or using x::Y and that Y."""
    if a.kind == b.kind == ALIAS:
        return a.text == b.text
    return any(x.kind == ALIAS and f"::{y.namespace}::{y.name}".endswith(f"::{x.text}") for x, y in ((a, b), (b, a)))


def collide(a, b):
    """Whether two sources may not have these definitions of one name."""
    if a.kind == b.kind == FUNCTION or a.name in FIXED or same(a, b):
        return False
    return encloses(a.namespace, b.namespace) or encloses(b.namespace, a.namespace)


def hides(source, header):
    """Whether a source may not have this definition, beside that of a header."""
    if source.kind == FUNCTION or header.namespace == MACRO or source.name in FIXED or same(source, header):
        return False
    return encloses(header.namespace, source.namespace)


def breaches(target, sources, headers=()):
    """A message for every name that two of (source, text) define, or a source and one of the headers (header, names)."""
    seen, shared = collections.defaultdict(list), collections.defaultdict(list)  # of a name: (file, its definition)
    for source, text in sources:
        for name in Reader(text).names:
            seen[name.name].append((source, name))
    for header, names in headers:
        for name in names:
            shared[name.name].append((header, name))
    for name, found in sorted(seen.items()):
        bad = {(source, one) for source, one in found
               if any(source != other and collide(one, two) for other, two in found)}
        for header, two in shared[name]:
            hiding = {(source, one) for source, one in found if hides(one, two)}
            bad |= hiding | ({(header, two)} if hiding else set())
        if bad:
            yield f"{target}: {name}: " + ", ".join(
                f"{source}:{one.line} ({one.namespace or 'global'})" for source, one in sorted(bad))


@functools.cache
def read(path):
    return path.read_text()


@functools.cache
def names_of(path):
    return Reader(read(path)).names


def included(paths, root):
    """Our headers that some files include, by themselves or through others."""
    seen, todo = set(), list(paths)
    while todo:
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', read(todo.pop()), re.M):
            header = root / name
            if header.suffix in {".h", ".cuh"} and header not in seen and header.exists():
                seen.add(header)
                todo.append(header)
    return seen


def batched(build):
    """{target: its sources} of the targets with batches, of a build folder that CMake made for ninja."""
    batched, alone = collections.defaultdict(list), collections.defaultdict(list)
    compiled = re.compile(r"^build \S*?CMakeFiles/([^/\s]+)\.dir/(\S+)\.o: \S+ (\S+\.(?:cc|cxx))(?= |$)", re.M)
    for target, name, source in compiled.findall((build / "build.ninja").read_text()):
        if name.startswith("Unity/"):
            batched[target] += re.findall(r'^#include "(.*)"$', (build / source).read_text(), re.M)
        else:
            alone[target].append(source)
    return {target: sources + alone[target] for target, sources in batched.items()}


def check(build, root=pathlib.Path(__file__).resolve().parents[2]):
    targets = batched(build)
    if not targets:
        yield f"{build}: no target has batches: build.ninja names no Unity/unity_*.cxx"
    for target, sources in sorted(targets.items()):
        paths = [path for path in map(pathlib.Path, sources) if path.exists()]  # not yet generated: nothing written by hand
        shown = {path: path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name for path in paths}
        headers = [(path.relative_to(root).as_posix(), names_of(path)) for path in included(paths, root)]
        yield from breaches(target, [(shown[path], read(path)) for path in paths], headers)


PLANTED = [  # two sources of one target, each with a breach; what is said of it names the second word
    ("two helpers", "Text", "namespace a {\nnamespace {\nint Text(int x) { return x; }\n}\n}\n",
     "namespace a {\nnamespace {\n[[nodiscard]] std::string Text(double x) { return {}; }\n}\n}\n"),
    ("a helper and a function that a header declares", "Sum", "namespace a {\nint Sum(int x) { return x; }\n}\n",
     "namespace a {\nnamespace {\ntemplate <class T, class = std::vector<T>>\nT Sum(const T& x) { return x; }\n}\n}\n"),
    ("statics", "Find", "static int Find(int x) { return x; }\n", "static const char* Find(char* x) { return x; }\n"),
    ("constants", "kMost", "namespace a {\nconstexpr size_t kMost = 1 << 3;\n}\n",
     "namespace a {\nnamespace {\nconst std::map<int, int> kMost = {\n  {1, 2}};\n}\n}\n"),
    ("the second of a declaration", "kMost", "constexpr int kLeast = F(1, 2), kMost = 2;\n", "constexpr int kMost{3};\n"),
    ("variables without a value", "state", "namespace {\nstd::atomic<int> state;\n}\n", "thread_local int state[3];\n"),
    ("classes", "Shown", "namespace a {\nnamespace {\nclass Shown final : public B<int> {\n int x; };\n}\n}\n",
     "namespace a {\nstruct Shown {};\n}\n"),
    ("enumerators", "kNone", "enum Kind { kNone, kOne = F(1, 2) };\n", "enum { kZero, kNone };\n"),
    ("scoped enums", "Kind", "enum class Kind : uint8_t { kNone };\n", "enum class Kind { kOne };\n"),
    ("aliases of two things", "Json", "using Json = nlohmann::json;\n", "using Json = nlohmann::ordered_json;\n"),
    ("namespaces of two things", "fs", "namespace fs = std::filesystem;\n", "namespace fs = absl::fs;\n"),
    ("macros", "ENTRY", "#define ENTRY(x) \\\n  {x}\n", "namespace a {\n#define ENTRY 1\n}\n"),
    ("a macro and a name", "Entry", "#define Entry(x) x\n", "namespace a {\nstruct Entry {};\n}\n"),
    ("the namespace around", "kMost", "namespace a {\nconstexpr int kMost = 1;\n}\n", "namespace a::b {\nconstexpr int kMost = 2;\n}\n"),
    ("a variable of a nameless type", "table", "struct { int x; } table[] = {{1}, {2}};\n", "static int table = 3;\n"),
    ("what follows a constructor", "Text", "A::A() : b_{1}, c_(2) {\n}\nstatic int Text() { return 1; }\n",
     "// static\nextern \"C\" {\nstatic int Text(int a = '{') { return a; }\n}\n"),
    ("tests", "A_B_Test", "namespace {\nTEST(A, B) {}\n}\n", "namespace {\nTEST_F(A, B) {}\n}\n"),
]
FINE = [  # pairs of sources without a breach
    ("overloads that headers declare", "int Read(int x) { return x; }\n", "int Read(char x) { return x; }\n"),
    ("namespaces beside each other", "namespace a::b {\nnamespace {\nint x = 1;\n}\n}\n", "namespace a::c {\nint x = 1;\n}\n"),
    ("declarations", "class A;\nextern int x;\nint F(int);\ntemplate class B<int>;\n", "class A;\nextern int x;\nint F(int) { return 1; }\n"),
    ("members", "int A::F() { return 1; }\nint A::x = 3;\nstruct A::Inner {};\n", "int B::F() { return 1; }\nint B::x = 3;\nstruct B::Inner {};\n"),
    ("operators", "static bool operator==(A a, A b) { return 1; }\n", "static bool operator==(B a, B b) { return 1; }\n"),
    ("the same alias", "using ::testing::AllOf;\nusing A = B<int>;\n", "using testing::AllOf;\nusing A = B<int>;\n"),
    ("an alias and what it means", "namespace a {\nusing json::Read;\n}\n", "namespace a::json {\nint Read(int x) { return x; }\n}\n"),
    ("specializations", "template <>\nstruct hash<A> {};\n", "template <>\nstruct hash<B> {};\n"),
    ("scoped enumerators and locals", "enum class A { kNone };\nint F() { static int x = 1; struct Y {}; }\n",
     "enum class B { kNone };\nint G() { static int x = 1; struct Y {}; }\n"),
    ("a macro that ended", "#define X 1\n#undef X\n", "#define X 2\n#undef X\n"),
    ("in comments and texts", "// int x = 1;\nconst char* a = \"int x = 1; }\";\n", "int x = 1;\n"),
]


def self_test():
    wrong = []
    for what, name, first, second in PLANTED:
        said = list(breaches("t", [("first.cc", first), ("second.cc", second)]))
        if len(said) != 1 or f" {name}: " not in said[0]:
            wrong.append(f"{what}: {name} is planted, and found: {said}")
    for what, first, second in FINE:
        wrong += [f"{what}: {said}" for said in breaches("t", [("first.cc", first), ("second.cc", second)])]
    with tempfile.TemporaryDirectory() as folder:
        build, unity = pathlib.Path(folder), "lib/CMakeFiles/a_lib.dir/Unity/unity_0_cxx.cxx"
        (build / unity).parent.mkdir(parents=True)
        for name in ("a.cc", "b.cc"):
            (build / name).write_text('#include "a.h"\n#include <vector>\nstatic int x = 1;\n' + f"int {name[0]}y = 2;\n")
        (build / "a.h").write_text('#include "b.h"\n')
        (build / "b.h").write_text("struct ay {};\nstruct z {};\n")
        (build / unity).write_text("".join(f'#include "{build}/{name}"\n\n' for name in ("a.cc", "b.cc", "not_generated.cc")))
        (build / "build.ninja").write_text(f"build {unity}.o: CXX_COMPILER {build}/{unity} || order\n"
                                           f"build lib/CMakeFiles/alone.dir/a.cc.o: CXX_COMPILER {build}/a.cc\n")
        said = [one.split(" ") for one in check(build, build)]
        if [one[:2] + one[-2:-1] for one in said] != [["a_lib:", "ay:", "b.h:1"], ["a_lib:", "x:", "b.cc:3"]]:
            wrong.append(f"a build folder with a breach: {said}")
        (build / "build.ninja").write_text("")
        if not list(check(build)):
            wrong.append("a build folder without batches passes")
    print("\n".join(f"self-test: {one}" for one in wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        sys.exit(self_test())
    messages = list(check(pathlib.Path(sys.argv[1])))
    print("\n".join(messages) if messages else "names: no breach")
    sys.exit(1 if messages else 0)
