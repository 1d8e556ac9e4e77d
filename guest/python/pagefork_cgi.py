"""Runs a CGI script, unchanged, under `pagefork serve --warm`.

    pagefork serve --warm --dir .::/app python.wasm /app/pagefork_cgi.py /app/script.py

Python starts once, imports what the script imports, and compiles the script. Then it reads
standard input for the first time: that is where it is captured. Each request goes on from there
in a fork of its own, which finds the request on standard input: its variables as a netstring, as
in SCGI, then the body. They become the environment and the standard input of the script.

When the script has ended, the fork does: what Python does besides when it exits is left out, but
for functions of `atexit`.
"""

import ast
import atexit
import importlib
import io
import os
import random
import sys
import traceback


def preload(tree):
    """Imports what a script imports at its top level; what fails, fails again in the script."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            pass


# Most bytes that the head of a request may have.
HEAD_MAX = 1 << 20


def refuse(why):
    raise SystemExit(f"pagefork_cgi: {why}")


def read_head(stdin):
    """The variables of a request, which come first on standard input."""
    digits = b""
    while (byte := stdin.read(1)) != b":" or not digits:
        if not byte:
            refuse("standard input ends within the head of the request")
        # Digits do not begin with a zero.
        if not byte.isdigit() or digits == b"0":
            refuse("standard input does not begin with the size of a request's head")
        digits += byte
        if int(digits) > HEAD_MAX:
            refuse("the head of the request is too long")
    size = int(digits)
    head = stdin.read(size + 1)
    if len(head) != size + 1:
        refuse("standard input ends within the head of the request")
    if head[-1:] != b",":
        refuse("the head of the request does not end with a comma")
    # Each word ends with a NUL, so that what comes after the last is empty.
    *words, rest = head[:-1].split(b"\0")
    names, values = words[::2], words[1::2]
    if (
        rest
        or len(names) != len(values)
        # The size of the body comes first, and once.
        or names[:1] != [b"CONTENT_LENGTH"]
        or names.count(b"CONTENT_LENGTH") != 1
        or not (values[0].isdigit() and len(values[0]) <= 19 or not values[0])
        or any(not name or b"=" in name for name in names)
        or (b"SCGI", b"1") not in zip(names, values)
    ):
        refuse("the head of the request does not hold the variables of SCGI")
    return dict(zip(names, values))


def environment(variables):
    """Makes a request's variables those of the process."""
    if not variables.get(b"CONTENT_LENGTH"):
        # The body, if there is one, ends with the input.
        variables.pop(b"CONTENT_LENGTH", None)
    variables.pop(b"SCGI", None)
    for name, value in variables.items():
        os.environb[name] = value


class Body(io.RawIOBase):
    """No more of standard input than the request says that its body has."""

    def __init__(self, stdin, size):
        self.stdin, self.left = stdin, size

    def readable(self):
        return True

    def readinto(self, into):
        data = self.stdin.read1(min(len(into), self.left))
        into[: len(data)] = data
        self.left -= len(data)
        return len(data)


def main():
    if len(sys.argv) < 2:
        raise SystemExit("usage: pagefork_cgi.py SCRIPT [ARGUMENTS]...")
    path = sys.argv[1]
    with io.open_code(path) as file:
        source = file.read()
    tree = ast.parse(source, path)
    preload(tree)
    code = compile(tree, path, "exec")
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(path)
    main_module = type(sys)("__main__")
    main_module.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main_module
    stdin = sys.stdin.buffer

    variables = read_head(stdin)  # Here the program is captured.

    # All forks have a copy of the same generator.
    random.seed()
    size = variables.get(b"CONTENT_LENGTH")
    environment(variables)
    if size:
        body = io.BufferedReader(Body(stdin, int(size)))
        sys.stdin = io.TextIOWrapper(body, encoding="utf-8", errors="surrogateescape")
    status = 0
    try:
        exec(code, main_module.__dict__)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        status = status or 120
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
