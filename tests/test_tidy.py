"""What no linter says: sizes, names, prose, dependencies, and what has no place in the repository.

A rule is a function from a tree (path -> text) to complaints. It runs on this repository, where it has to
find nothing, and on small bad trees, where it has to find something: a rule that never fires would be seen.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES = 400
FUNCTION_LINES = 70
PARAMETERS = 6
CORE_LINES = 4_000
CORE = ["events", "thread", "steps", "loop", "store", "worker", "runtime"]
# Who knows the core with one database knows it: what the second one adds is counted by itself.
SECOND_DATABASE = "src/tenuto/store/postgres"
SECOND_DATABASE_LINES = 500

# Signatures that may be wider, each with its reason: "path::Class.function" -> why.
WIDE_SIGNATURES: dict[str, str] = {
    "src/tenuto/tools/declare.py::tool": "the options of a decorator, all by keyword",
    "src/tenuto/events.py::chain_hash": "what is hashed, in the order of the stored form",
}

STANDARD_LIBRARY_ONLY = ["flow", "splitter", "clock", "errors", "limits"]
PURE = ["events", "messages", "thread", "steps"]
IMPURE_IMPORTS = {"asyncio", "datetime", "http", "os", "pathlib", "random", "secrets", "socket", "sqlite3"}
IMPURE_IMPORTS |= {"subprocess", "threading", "time", "tenuto.clock"}

Tree = dict[str, str]
Rule = Callable[[Tree], list[str]]


# --- reading --------------------------------------------------------------------------------------------


def repository() -> Tree:
    """Every text file that is tracked or about to be; all files, where git is not at hand."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.split("\0")
    else:
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [p.as_posix() for p in found if not any(part.startswith(".venv") for part in p.parts)]
    tree: Tree = {}
    for name in names:
        path = ROOT / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        try:
            tree[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or another binary
    return tree


def python_files(tree: Tree, below: str = "") -> Iterator[tuple[str, str]]:
    return ((path, text) for path, text in tree.items() if path.startswith(below) and path.endswith(".py"))


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[tuple[str, Function]]:
    """Each function with its dotted name inside the module."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}{getattr(child, 'name', '')}"
            if isinstance(child, Function):
                yield name, child
            named = isinstance(child, Function | ast.ClassDef)
            yield from visit(child, f"{name}." if named else prefix)

    return visit(parsed(text), "")


def module_of(path: str) -> str:
    """`events` for src/tenuto/events.py, `store` for everything below src/tenuto/store/."""
    return path.removeprefix("src/tenuto/").split("/")[0].removesuffix(".py")


def imports(text: str) -> Iterator[str]:
    """The full name of each imported module, wherever in the file the import stands."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tenuto":
            yield from (f"tenuto.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


# --- rules ----------------------------------------------------------------------------------------------


def files_are_short(tree: Tree) -> list[str]:
    lengths = {path: text.count("\n") for path, text in tree.items() if path.endswith((".py", ".sql"))}
    return [f"{path}: {n} lines, at most {FILE_LINES}" for path, n in lengths.items() if n > FILE_LINES]


def functions_are_short(tree: Tree) -> list[str]:
    return [
        f"{path}:{node.lineno}: {name} has {length} lines, at most {FUNCTION_LINES}"
        for path, text in python_files(tree)
        for name, node in functions(text)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    ]


def parameters_are_few(tree: Tree) -> list[str]:
    """Beside self and cls. The options of a CLI command are its interface, not an argument list: left out."""
    complaints = []
    wide = set()
    for path, text in python_files(tree, "src/"):
        for name, node in functions(text):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len([a for a in every if a.arg not in {"self", "cls"}])
            is_command = path.startswith("src/tenuto/cli/") and bool(node.decorator_list)
            if count <= PARAMETERS or is_command:
                continue
            wide.add(f"{path}::{name}")
            if f"{path}::{name}" not in WIDE_SIGNATURES:
                complaints.append(
                    f"{path}:{node.lineno}: {name} has {count} parameters, at most {PARAMETERS}"
                )
    stale = [key for key in WIDE_SIGNATURES if key.split("::")[0] in tree and key not in wide]
    return complaints + [f"{key}: needs no exception any more" for key in stale]


def the_core_is_small(tree: Tree) -> list[str]:
    counted = {"the core": 0, "the second database": 0}
    for path, text in python_files(tree, "src/tenuto/"):
        if module_of(path) in CORE:
            part = "the second database" if path.startswith(SECOND_DATABASE) else "the core"
            counted[part] += text.count("\n")
    most = {"the core": CORE_LINES, "the second database": SECOND_DATABASE_LINES}
    return [f"{part} has {n} lines, at most {most[part]}" for part, n in counted.items() if n > most[part]]


def names_say_something(tree: Tree) -> list[str]:
    empty = {"util", "utils", "helper", "helpers", "manager", "managers"}
    complaints = []
    for path, text in python_files(tree):
        defined = [node for node in ast.walk(parsed(text)) if isinstance(node, Function | ast.ClassDef)]
        names = [*path.removesuffix(".py").split("/"), *(node.name for node in defined)]
        complaints += [
            f"{path}: {name!r} says nothing about what it is" for name in names if words(name) & empty
        ]
    return complaints


def packages_open_with_prose(tree: Tree) -> list[str]:
    paths = [path for path, _ in python_files(tree, "src/tenuto/")]
    complaints = []
    for package in sorted({path.rpartition("/")[0] for path in paths}):
        text = tree.get(f"{package}/__init__.py")
        if text is None:
            complaints.append(f"{package}: no __init__.py")
        elif len((ast.get_docstring(parsed(text)) or "").split()) < 12:
            complaints.append(f"{package}/__init__.py: open with what lives here, flows through, is refused")
    return complaints


def dependencies_are_explained(tree: Tree) -> list[str]:
    """pyproject.toml, docs/dependencies.md and constraints.txt name the same packages."""
    project = tomllib.loads(tree["pyproject.toml"])["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project.get("dependencies", []), *(line for extra in extras for line in extra)]
    # An extra may take in another one, as tenuto[...].
    needed = {normal(line) for line in lines} - {"tenuto"}
    rows = re.findall(r"^\| `([^`]+)` \|", tree["docs/dependencies.md"], re.MULTILINE)
    explained = {normal(name) for name in rows}
    pinned = {normal(line) for line in tree["constraints.txt"].splitlines() if "==" in line}
    return [
        *(f"docs/dependencies.md: no line for {name}" for name in sorted(needed - explained)),
        *(f"docs/dependencies.md: {name} is not in pyproject.toml" for name in sorted(explained - needed)),
        *(f"constraints.txt: {name} is not pinned" for name in sorted(needed - pinned)),
    ]


def normal(requirement: str) -> str:
    """The package's name in a requirement, in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def nothing_of_one_machine(tree: Tree) -> list[str]:
    """No paths of a person's or a build machine, and no package registry: users choose their own."""
    # In pieces, so that this file may hold them.
    place = re.compile(r"(?<![\w./~-])/(?:(?:wor" + r"k|roo" + r"t)(?![\w-])|(?:hom" + r"e|User" + r"s)/\w)")
    registries = (
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "npmjs" + ".org",
        "npmjs" + ".com",
        "debian" + ".org",
    )
    complaints = []
    for path, text in tree.items():
        for number, line in enumerate(text.splitlines(), 1):
            found = place.search(line)
            names = [found.group()] if found else [host for host in registries if host in line]
            complaints += [f"{path}:{number}: {name}" for name in names]
    return complaints


def nothing_is_left_for_later(tree: Tree) -> list[str]:
    mark = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    return [
        f"{path}:{number}: do it, or write it down where work is planned: {line.strip()}"
        for path, text in tree.items()
        for number, line in enumerate(text.splitlines(), 1)
        if mark.search(line)
    ]


def exceptions_to_checks_have_reasons(tree: Tree) -> list[str]:
    """`# noqa: CODE - why`, `# type: ignore[code]  # why`, or the reason in a comment on the line before."""
    silenced = re.compile(
        r"#\s*(?:no" + r"qa|type:\s*igno" + r"re)\b[:\[\]\w, -]*?(?:$|\s[-#]\s*(?P<reason>.*))"
    )
    complaints = []
    for path, text in python_files(tree):
        lines = ["", *text.splitlines()]
        for number, line in enumerate(lines):
            found = silenced.search(line)
            if found and not found["reason"] and not lines[number - 1].lstrip().startswith("#"):
                complaints.append(f"{path}:{number}: say why: {line.strip()}")
    return complaints


def floors_that_need_nothing(tree: Tree) -> list[str]:
    """Some modules import the standard library and each other, nothing else."""
    complaints = []
    for path, text in python_files(tree, "src/tenuto/"):
        if module_of(path) in STANDARD_LIBRARY_ONLY:
            for name in imports(text):
                top, _, rest = name.partition(".")
                own = top == "tenuto" and rest.split(".")[0] in STANDARD_LIBRARY_ONLY
                if not own and top not in sys.stdlib_module_names:
                    complaints.append(f"{path}: imports {name}")
    return complaints


def the_pure_core_is_pure(tree: Tree) -> list[str]:
    """No I/O, no clock, no randomness where facts are folded and the next step is found. uuid5 is pure."""
    complaints = []
    for path, text in python_files(tree, "src/tenuto/"):
        if module_of(path) not in PURE:
            continue
        named = [name for name in imports(text) if {name, name.split(".")[0]} & IMPURE_IMPORTS]
        complaints += [f"{path}: imports {name}" for name in named]
        complaints += [f"{path}: uses {name}" for name in re.findall(r"\buuid[14]\b", text)]
    return complaints


# --- the repository -----------------------------------------------------------------------------------------

EMPTY_PROJECT = {"pyproject.toml": "[project]\n", "docs/dependencies.md": "", "constraints.txt": ""}

# Each rule with trees that it has to find fault with.
BAD: dict[Rule, list[Tree]] = {
    files_are_short: [{"src/a.py": "x = 1\n" * 401}, {"src/a.sql": "--\n" * 401}],
    functions_are_short: [
        {"src/a.py": "def f():\n" + "    x = 1\n" * 70},
        {"src/a.py": "class A:\n    async def f(self):\n" + "        x = 1\n" * 70},
    ],
    parameters_are_few: [
        {"src/a.py": "def f(a, b, c, d, e, f, g): ...\n"},
        {"src/a.py": "class A:\n    def f(self, a, /, b, c, *, d, e, f, g): ...\n"},
        {"src/tenuto/cli/a.py": "def f(a, b, c, d, e, f, g): ...\n"},
    ],
    the_core_is_small: [
        {f"src/tenuto/store/a{n}.py": "x = 1\n" * 400 for n in range(11)},
        {f"src/tenuto/store/postgres_{n}.py": "x = 1\n" * 400 for n in range(2)},
    ],
    names_say_something: [
        {"src/tenuto/utils.py": ""},
        {"tests/store_helpers.py": ""},
        {"src/a.py": "class ThreadManager: ...\n"},
        {"src/a.py": "def helper(): ...\n"},
    ],
    packages_open_with_prose: [
        {"src/tenuto/store/base.py": ""},
        {"src/tenuto/store/__init__.py": ""},
        {"src/tenuto/store/__init__.py": '"""The store."""\n'},
    ],
    dependencies_are_explained: [
        EMPTY_PROJECT
        | {"pyproject.toml": "[project]\ndependencies = ['rich>=1']\n", "constraints.txt": "rich==1"},
        EMPTY_PROJECT | {"docs/dependencies.md": "| `rich` | colours |\n"},
        {
            "pyproject.toml": "[project.optional-dependencies]\ndev = ['Import_Linter>=1']\n",
            "docs/dependencies.md": "| `import-linter` | floors |\n",
            "constraints.txt": "rich==1\n",
        },
    ],
    nothing_of_one_machine: [
        {"README.md": "see /wor" + "k/main"},
        {"README.md": "cd /roo" + "t"},
        {"a.toml": 'path = "/hom' + 'e/ana/x"'},
        {"a.txt": "https://pypi" + ".org/simple"},
    ],
    nothing_is_left_for_later: [{"a.sql": "-- TO" + "DO: index"}, {"a.py": "# FIX" + "ME later"}],
    exceptions_to_checks_have_reasons: [
        {"a.py": "x = 1  # no" + "qa: E501\n"},
        {"a.py": "x = 1\ny = 2  # type: igno" + "re[arg-type]\n"},
    ],
    floors_that_need_nothing: [
        {"src/tenuto/splitter.py": "import msgspec\n"},
        {"src/tenuto/flow/job.py": "def f():\n    from tenuto.events import Event\n"},
        {"src/tenuto/flow/job.py": "from tenuto import Agent\n"},
    ],
    the_pure_core_is_pure: [
        {"src/tenuto/thread.py": "from time import time\n"},
        {"src/tenuto/events.py": "from tenuto import clock\n"},
        {"src/tenuto/steps.py": "import uuid\n\nx = uuid.uuid4()\n"},
    ],
}

GOOD: Tree = EMPTY_PROJECT | {
    "src/tenuto/a.py": "def f(self, a, b, c, d, e, f): ...\n\n\nfrom contextlib import contextmanager\n",
    "src/tenuto/cli/__init__.py": f'"""{"word " * 12}"""\n',
    "src/tenuto/cli/a.py": "@app.command()\ndef f(a, b, c, d, e, f, g): ...\n",
    "src/tenuto/__init__.py": f'"""{"word " * 12}"""\n',
    "src/tenuto/flow/__init__.py": f'"""{"word " * 12}"""\nimport asyncio\nfrom tenuto.flow.job import Job\n',
    "src/tenuto/thread.py": "import msgspec\nfrom tenuto.events import Event\n",
    "tests/test_a.py": "def f(a, b, c, d, e, f, g): ...\n",
    "b.py": "x = 1  # no" + "qa: BLE001 - a tool may raise anything\n",
    "c.py": "# The stub is wrong here.\nx = 1  # type: igno" + "re[arg-type]\n",
    "README.md": "GET /v1/threads, docs/work, https://example.com/home/x, ~/root",
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return repository()


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_this_repository_keeps_the_rule(rule: Rule, tree: Tree) -> None:
    complaints = rule(tree)
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("rule", "bad"), [(rule, bad) for rule, trees in BAD.items() for bad in trees])
def test_the_rule_finds_what_is_wrong(rule: Rule, bad: Tree) -> None:
    assert len(rule(bad)) == 1


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_the_rule_lets_be_what_is_right(rule: Rule) -> None:
    assert rule(GOOD) == []


def test_an_exception_that_is_needed_no_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDE_SIGNATURES, "src/a.py::f", "it once had seven")
    assert parameters_are_few({"src/a.py": "def f(a): ...\n"}) == ["src/a.py::f: needs no exception any more"]
    assert parameters_are_few({"src/b.py": ""}) == []
