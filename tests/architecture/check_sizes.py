#!/usr/bin/env python3
"""Fails on a file that grew too large to read at a sitting, a function that does not fit a screen, an empty file, and a
header that does not begin by saying what it is.

At most 450 lines a file and 70 lines a function, in C++, CUDA, Python and shell. There are no exceptions.

usage: check_sizes.py [ROOT]      --self-test plants breaches and checks that each is found
"""
import ast
import pathlib
import re
import subprocess
import sys

MOST_FILE_LINES, MOST_FUNCTION_LINES = 450, 70
CXX = {".h", ".cc", ".cu", ".cuh"}
SOURCES = CXX | {".py", ".sh"}
OPENING = re.compile(r"^(//|/\*|#\s)")


def strip(text):
    """C++ without comments and literals, line by line as it was: braces in them open nothing."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)
    return token.sub(blank, text)


def opens_function(head):
    """Whether what stands before a brace is a function's head."""
    before = head.split("(", 1)[0]
    if "(" not in head or re.search(r"\b(class|struct|union|enum|namespace)\b(?![^<]*>)", before):
        return False
    return not re.search(r"(?<!operator)(?<![=!<>]|r)=(?!=)", before)  # a table, or a lambda that is no function's body


def cxx_functions(text):
    """(name, first line, lines) of every function body that is not inside another."""
    code = strip(re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M))
    depth, start, head, open_at = 0, 0, "", None
    stack = []  # of every open brace: whether it opens a function
    for i, c in enumerate(code):
        if c == "{":
            head = code[start:i]
            inside = any(stack)
            is_function = not inside and opens_function(head)
            if is_function:
                open_at = (i, head)
            stack.append(is_function)
            start = i + 1
        elif c == "}":
            if stack and stack.pop():
                at, head = open_at
                first = code.count("\n", 0, at - len(head.lstrip())) + 1
                last = code.count("\n", 0, i) + 1
                name = re.search(r"([\w~:<>]+|operator\S+)\s*\(", head)
                yield (name[1] if name else "?"), first, last - first + 1
            start = i + 1
        elif c == ";" and not any(stack):
            start = i + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def breaches(name, text):
    """A message for everything wrong with one file."""
    suffix = pathlib.PurePosixPath(name).suffix
    lines = text.splitlines()
    if not text.strip() and not name.endswith("__init__.py"):
        yield f"{name}: empty"
        return
    if len(lines) > MOST_FILE_LINES:
        yield f"{name}: {len(lines)} lines, at most {MOST_FILE_LINES}"
    if suffix in {".h", ".cuh"} and not OPENING.match(lines[0]):
        yield f"{name}: a header begins with a comment that says what it is, not with {lines[0]!r}"
    functions = cxx_functions(text) if suffix in CXX else python_functions(text) if suffix == ".py" else ()
    for function, first, size in functions:
        if size > MOST_FUNCTION_LINES:
            yield f"{name}:{first}: {function} has {size} lines, at most {MOST_FUNCTION_LINES}"


def check(files):
    """What to print, of (name, text) pairs."""
    for name, text in files:
        yield from breaches(name, text)


def self_test():
    body = "".join(f"  Call({i});\n" for i in range(80))
    planted = {
        "long.cc": "int x;\n" * 451,
        "empty.h": "",
        "bare.h": "#pragma once\n",
        "function.cc": "// a\nnamespace a {\nvoid Long(int x) {\n" + body + "}\n}\n",
        "member.cc": "// a\nA::A(int b) : b_(b) {\n" + body + "}\n",
        "test.cc": "// a\nnamespace {\nTEST_F(A, B) {\n" + body + "}\n}\n",
        "trailing.cc": "// a\nauto F(int x) const -> std::vector<int> {\n" + body + "}\n",
        "inline.h": "// a\nclass A {\n public:\n  int Get() const noexcept {\n" + body + "  }\n};\n",
        "template.cc": "// a\ntemplate <class T>\n__global__ void Kernel(T* a,\n    int b) {\n" + body + "}\n",
        "brace.cc": '// a\nvoid Long() {\n  Say("}", \'}\');  // }\n' + body + "}\n",
        "long.py": "def long():\n" + "    x = 1\n" * 75,
        "long.sh": "true\n" * 451,
    }
    fine = {
        "fine.h": "// a\n#pragma once\nnamespace a {\nclass A {\n" + "  int Get() const { return 1; }\n" * 100 + "};\n}\n",
        "table.cc": "// a\nconst std::map<int, int> kTable = {\n" + "  {1, 2},\n" * 100 + "};\n",
        "two.cc": "// a\n" + ("void F() {\n" + "  Call();\n" * 60 + "}\n") * 3,
        "fine.py": ("def f():\n" + "    x = 1\n" * 50) * 2,
    }
    missed = [name for name, text in planted.items() if not list(check([(name, text)]))]
    wrong = [message for name, text in fine.items() for message in check([(name, text)])]
    for what in missed + wrong:
        print(f"self-test: {what}")
    return 1 if missed or wrong else 0


def files_of(root):
    """Ours: what git knows, or everything outside build folders where there is no git."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and "build" not in p.relative_to(root).parts[:1]]
    for name in sorted(names):
        if pathlib.PurePosixPath(name).suffix in SOURCES and (root / name).exists():
            yield name, (root / name).read_text(errors="replace")


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        sys.exit(self_test())
    messages = list(check(files_of(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
    print("\n".join(messages) if messages else "sizes: no breach")
    sys.exit(1 if messages else 0)
