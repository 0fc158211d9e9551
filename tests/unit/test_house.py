"""The house rules, held over the syntax tree and the files of the repository.

A rule is a function from one module to complaints. The tables at the top are the rules that people
change; the last part of the file shows each rule a module that breaks it, so that no rule is idle.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import pytest

from rhinoctl import errors

ROOT = Path(__file__).resolve().parents[2]

# ---------------------------------------------------------------------------- the tables

FOUNDATION = ("errors", "ids", "limits")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # layer: what it may import of rhinoctl besides itself and `rhinoctl.__version__`
    # (design, section 12; `wire`: docs/adr/0001-wire-package.md)
    "errors": (),
    "ids": (),
    "limits": ("ids",),
    "protocol": FOUNDATION,
    "wire": ("protocol", *FOUNDATION),
    "state": ("protocol", *FOUNDATION),
    "operators": ("protocol", *FOUNDATION),
    "control": ("protocol", "state", "wire", *FOUNDATION),
    "spark": ("operators", "protocol", "wire", "control.client", *FOUNDATION),
    "remote": ("protocol", "wire.secret", *FOUNDATION),
    "config": ("protocol", "wire.secret", *FOUNDATION),
    "playbook": ("protocol", *FOUNDATION),
    "ops": (
        *("control.client", "config", "remote", "playbook", "protocol", "wire.secret"),
        *FOUNDATION,
    ),
    "render": ("ops", "protocol", *FOUNDATION),
    "cli": ("ops", "render", *FOUNDATION),
    "rhino_agent": ("state", "operators", "protocol", "wire", "remote.proc", *FOUNDATION),
}

ONLY_IN: dict[str, tuple[str, ...]] = {
    # third party: the layers that may import it
    "pyspark": ("spark",),
    "rocksdict": ("state",),
    "fabric": ("remote",),
    "paramiko": ("remote",),
    "typer": ("cli",),
}

IMPURE: dict[str, tuple[str, ...]] = {
    # what `protocol` must not import, by reason
    "I/O": ("os", "io", "sys", "pathlib", "shutil", "tempfile", "glob", "fcntl", "mmap"),
    "databases": ("sqlite3", "rocksdict", "pyarrow.fs", "pyarrow.parquet"),
    "the network": ("socket", "select", "selectors", "ssl", "http", "urllib", "httpx", "fastapi"),
    "messages": ("pyarrow.flight",),
    "clocks and chance": ("time", "random", "secrets", "uuid"),
    "logs": ("logging", "warnings"),
    "threads and processes": (
        *("threading", "queue", "concurrent", "asyncio"),
        *("multiprocessing", "subprocess", "signal"),
    ),
}
PURE_PATHS = frozenset({"pathlib.PurePath", "pathlib.PurePosixPath"})
IMPURE_CALLS = frozenset({"open", "print", "input"})
CLOCK_CALLS = frozenset({"now", "utcnow", "today", "fromtimestamp"})

CATCH_ALL: dict[str, int] = {
    # where `except Exception` may stand, and how often: the boundaries of style rule 8
    "rhinoctl/cli/": 1,  # the CLI's root: any exception becomes text and an exit code
    "agents/rhino_agent/": 2,  # the agent's loop and the main of an instance
    "rhinoctl/control/__main__": 1,  # the controller's loop: one job's trouble is not all jobs'
    "rhinoctl/wire/": 1,  # a worker thread: its exception is handed to the loop that waits for it
}

SAYS_NOTHING = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "manager"})
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
README_LINES_MAX = 100

REGISTRY = re.compile(r"https?://[^\s]*(pypi|pythonhosted|maven|npmjs|crates)", re.IGNORECASE)
BUILD_MACHINE = re.compile(r"(?<![\w.])" + re.escape("/".join(("", "work", ""))))


# ---------------------------------------------------------------------------- modules


@dataclass(frozen=True)
class Module:
    """One source file; `path` is relative to the repository, with ``/``."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @property
    def dotted(self) -> str:
        name = self.path.removeprefix("agents/").removesuffix(".py").removesuffix("/__init__")
        return name.replace("/", ".")

    @property
    def layer(self) -> str:
        """``spark`` for ``rhinoctl.spark.sink``, ``rhino_agent`` for all of the agent."""
        top, _, rest = self.dotted.partition(".")
        layer = rest.split(".")[0] if top == "rhinoctl" else top
        return "cli" if layer == "__main__" else layer

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of all that is imported, also inside functions and for typing."""
        package = self.dotted.split(".")
        if not self.path.endswith("__init__.py"):
            package = package[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


@cache
def modules(*roots: str) -> tuple[Module, ...]:
    paths = sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))
    return tuple(
        Module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths
    )


def product() -> tuple[Module, ...]:
    return modules("rhinoctl", "agents")


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def expect_none(complaints: Iterable[str]) -> None:
    """Fail with one complaint a line, none cut short."""
    if found := list(complaints):
        pytest.fail("\n".join(found), pytrace=False)


# ---------------------------------------------------------------------------- rules

Rule = Callable[[Module], Iterator[str]]


def has_a_place(module: Module) -> Iterator[str]:
    if module.layer and module.layer not in MAY_IMPORT:
        yield f"{module.path}: the table MAY_IMPORT has no row for {module.layer}"


def imports_point_inward(module: Module) -> Iterator[str]:
    allowed = MAY_IMPORT.get(module.layer, ())
    for line, name in module.imports():
        top, _, rest = name.partition(".")
        if top == "rhino_agent":
            wrong = module.layer != "rhino_agent"
        elif top == "rhinoctl":
            inside = rest in ("", "__version__") or within(rest, (module.layer,))
            wrong = not inside and not within(rest, allowed)
        else:
            wrong = False
        if wrong:
            yield f"{module.path}:{line}: {module.layer} may not import {name}"


def third_parties_have_an_owner(module: Module) -> Iterator[str]:
    for line, name in module.imports():
        owners = ONLY_IN.get(name.split(".")[0])
        if owners is not None and module.layer not in owners:
            yield f"{module.path}:{line}: only {', '.join(owners)} may import {name}"


def protocol_is_pure(module: Module) -> Iterator[str]:
    if module.layer != "protocol":
        return
    for line, name in module.imports():
        for reason, names in IMPURE.items():
            if within(name, names) and name not in PURE_PATHS:
                yield f"{module.path}:{line}: protocol imports {name} ({reason})"
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{module.path}:{node.lineno}: protocol calls {name}()"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in CLOCK_CALLS:
                if ast.unparse(owner).split(".")[-1] in ("datetime", "date"):
                    yield f"{module.path}:{node.lineno}: protocol reads a clock, {name}()"


def module_has_one_idea(module: Module) -> Iterator[str]:
    lines = len(module.source.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{module.path}: {lines} lines, at most {MODULE_LINES_MAX}"


def name_says_something(module: Module) -> Iterator[str]:
    for name in module.dotted.split("."):
        if name in SAYS_NOTHING or re.fullmatch(r".*_?part_?\d+", name):
            yield f"{module.path}: {name} says nothing"


def function_fits_a_screen(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines"


def catch_alls(module: Module) -> Iterator[ast.ExceptHandler]:
    """Handlers of every exception that do not end in a plain ``raise``."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {None if kind is None else ast.unparse(kind) for kind in kinds}
        last = node.body[-1]
        passed_on = isinstance(last, ast.Raise) and last.exc is None
        if names & {None, "Exception", "BaseException"} and not passed_on:
            yield node


def catches_all_at_boundaries_only(module: Module) -> Iterator[str]:
    at_boundary = module.path.startswith(tuple(CATCH_ALL))
    for handler in catch_alls(module):
        where = f"{module.path}:{handler.lineno}"
        if handler.type is None:
            yield f"{where}: a bare except"
        elif all(isinstance(statement, ast.Pass) for statement in handler.body):
            yield f"{where}: every exception is dropped"
        elif not at_boundary:
            yield f"{where}: not one of the boundaries in CATCH_ALL"
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(
                func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds
            ):
                if {"Exception", "BaseException"} & {ast.unparse(kind) for kind in kinds}:
                    yield f"{module.path}:{node.lineno}: every exception is dropped"


def errors_are_one_tree(module: Module) -> Iterator[str]:
    if module.dotted == "rhinoctl.errors":
        return
    tree = {error.__name__ for error in errors.leaves()}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
            if bases & tree:
                yield f"{module.path}:{node.lineno}: {node.name} belongs in rhinoctl/errors.py"


PRODUCT_RULES: tuple[Rule, ...] = (
    has_a_place,
    imports_point_inward,
    third_parties_have_an_owner,
    protocol_is_pure,
    function_fits_a_screen,
    catches_all_at_boundaries_only,
    errors_are_one_tree,
)
ALL_CODE_RULES: tuple[Rule, ...] = (module_has_one_idea, name_says_something)


@pytest.mark.parametrize("rule", PRODUCT_RULES, ids=lambda rule: rule.__name__)
def test_product(rule: Rule) -> None:
    expect_none(complaint for module in product() for complaint in rule(module))


@pytest.mark.parametrize("rule", ALL_CODE_RULES, ids=lambda rule: rule.__name__)
def test_product_and_tests(rule: Rule) -> None:
    everything = product() + modules("tests")
    expect_none(complaint for module in everything for complaint in rule(module))


@pytest.mark.parametrize("boundary", CATCH_ALL)
def test_a_boundary_catches_all_in_few_places(boundary: str) -> None:
    there = [module for module in product() if module.path.startswith(boundary)]
    handlers = [f"{m.path}:{node.lineno}" for m in there for node in catch_alls(m)]
    assert len(handlers) <= CATCH_ALL[boundary], handlers


def test_every_directory_of_modules_is_a_package() -> None:
    directories = {Path(module.path).parent for module in product()}
    bare = [d for d in sorted(directories) if not (ROOT / d / "__init__.py").is_file()]
    expect_none(f"{directory} has no __init__.py, so the wheel would lack it" for directory in bare)


# ---------------------------------------------------------------------------- errors and documents

HEADING = re.compile(r"^(#+) (.+?)\s*$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    return [ROOT / name for name in files_of_the_repository() if name.endswith(".md")]


def prose(document: Path) -> str:
    """The text without fenced code, in which a ``#`` is no heading and a bracket no link."""
    return re.sub(r"^```.*?^```$", "code", document.read_text("utf-8"), flags=re.M | re.S)


def anchors(document: Path) -> set[str]:
    titles = (title for _, title in HEADING.findall(prose(document)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_codes_of_errors_are_unique() -> None:
    codes = [error.code for error in errors.leaves()]
    assert sorted(codes) == sorted(set(codes))


def test_every_error_code_is_explained_under_its_exit_code() -> None:
    explained: dict[str, int] = {}
    exit_code = -1
    for level, title in HEADING.findall(prose(ROOT / "docs/operations/errors.md")):
        if level == "##":
            section = re.match(r"Exit code (\d+)", title)
            exit_code = int(section[1]) if section else -1
        elif level == "###":
            explained[title] = exit_code
    assert explained == {error.code: int(error.exit_code) for error in errors.leaves()}


def test_the_table_of_exit_codes_is_the_enum() -> None:
    rows = re.findall(r"^\| (\d+) \|", prose(ROOT / "docs/operations/errors.md"), re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in errors.Exit]


def test_no_chapter_is_empty() -> None:
    empty = []
    for document in documents():
        pieces = HEADING.split(prose(document))[1:]
        chapters = list(zip(pieces[0::3], pieces[1::3], pieces[2::3], strict=True))
        for (level, title, text), following in pairwise([*chapters, None]):
            has_parts = following is not None and len(following[0]) > len(level)
            if not text.strip() and not has_parts:
                empty.append(f"{document.relative_to(ROOT)}: {title}")
    expect_none(empty)


def test_relative_links_resolve() -> None:
    dead = []
    for document in documents():
        for link in LINK.findall(prose(document)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            to_heading = anchor and target.suffix == ".md"
            if not target.exists() or (to_heading and anchor not in anchors(target)):
                dead.append(f"{document.relative_to(ROOT)}: {link}")
    expect_none(dead)


def test_every_document_is_on_the_map() -> None:
    docs = ROOT / "docs"
    text = (docs / "README.md").read_text("utf-8")
    names = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    not_adr = [name for name in names if not name.startswith("adr/") and name != "README.md"]
    expect_none(f"docs/README.md does not name {name}" for name in not_adr if name not in text)


def test_readme_is_short() -> None:
    readme = ROOT / "README.md"
    lines = len(readme.read_text("utf-8").splitlines()) if readme.exists() else 0
    assert lines <= README_LINES_MAX


# ---------------------------------------------------------------------------- the repository


@cache
def files_of_the_repository() -> tuple[str, ...]:
    """Names of all files that are, or would be, in git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git repository")
    names = sorted(set(listed.stdout.split("\0")) - {""})
    return tuple(name for name in names if (ROOT / name).is_file())


@pytest.mark.timeout(600)
@pytest.mark.slow  # `make check` runs it; the tests are shared out by this order
def test_tests_are_collected_in_one_order() -> None:
    """Cases taken from a set come in another order in each process, and two workers disagree."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collections = [
        subprocess.Popen(
            [*command, "tests"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2", "3", "4")  # a set of two has one order in half of the processes
    ]
    outputs = [collection.communicate()[0] for collection in collections]
    first, *others = ([line for line in out.splitlines() if "::" in line] for out in outputs)
    assert first
    expect_none(
        f"{there}: elsewhere {here} comes in its place"
        for other in others
        for here, there in zip(first, other, strict=True)
        if here != there
    )


@pytest.mark.parametrize("pattern", [REGISTRY, BUILD_MACHINE], ids=["registry", "build-machine"])
def test_no_file_names_a_place_of_the_build(pattern: re.Pattern[str]) -> None:
    found = []
    for name in files_of_the_repository():
        text = (ROOT / name).read_text("utf-8", errors="ignore")
        found += [f"{name}: {match[0]}" for match in pattern.finditer(text)]
    expect_none(found)


def test_every_dependency_is_pinned_without_an_address() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    expect_none(line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line))
    pinned = {plain(line.partition("==")[0]) for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {plain(re.split(r"[^\w.-]", want)[0]) for want in wanted}
    expect_none(sorted(names - pinned))


# ---------------------------------------------------------------------------- the rules bite

LONG = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX

BROKEN: list[tuple[Rule, str, str]] = [
    (has_a_place, "rhinoctl/novelty/a.py", ""),
    (imports_point_inward, "rhinoctl/protocol/a.py", "from rhinoctl.state import log"),
    (imports_point_inward, "rhinoctl/protocol/a.py", "from rhinoctl import wire"),
    (imports_point_inward, "rhinoctl/protocol/a.py", "from ..wire import flight"),
    (imports_point_inward, "rhinoctl/ops/a.py", "import rhinoctl.control.store"),
    (imports_point_inward, "rhinoctl/ops/a.py", "from rhinoctl.control import clientele"),
    (imports_point_inward, "rhinoctl/ops/a.py", "import rhino_agent"),
    (imports_point_inward, "agents/rhino_agent/a.py", "from rhinoctl.control import client"),
    (imports_point_inward, "rhinoctl/ids.py", "from rhinoctl import errors"),
    (third_parties_have_an_owner, "rhinoctl/operators/a.py", "def f():\n    import pyspark.sql"),
    (third_parties_have_an_owner, "agents/rhino_agent/a.py", "from rocksdict import Rdict"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "import time"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "from pathlib import Path"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "from pyarrow import flight"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "open('x')"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "datetime.datetime.now()"),
    (module_has_one_idea, "rhinoctl/ids.py", "x = 1\n" * (MODULE_LINES_MAX + 1)),
    (name_says_something, "rhinoctl/state/utils.py", ""),
    (name_says_something, "rhinoctl/state/log_part2.py", ""),
    (function_fits_a_screen, "rhinoctl/ids.py", LONG),
    (catches_all_at_boundaries_only, "rhinoctl/ids.py", "try: f()\nexcept Exception: g()"),
    (catches_all_at_boundaries_only, "rhinoctl/ids.py", "try: f()\nexcept (A, Exception): g()"),
    (catches_all_at_boundaries_only, "rhinoctl/cli/a.py", "try: f()\nexcept: g()"),
    (catches_all_at_boundaries_only, "rhinoctl/cli/a.py", "try: f()\nexcept Exception: pass"),
    (catches_all_at_boundaries_only, "rhinoctl/ids.py", "with suppress(Exception): f()"),
    (errors_are_one_tree, "rhinoctl/state/a.py", "class Torn(errors.CorruptFile): ..."),
]

SOUND: list[tuple[Rule, str, str]] = [
    (imports_point_inward, "rhinoctl/ops/a.py", "from rhinoctl.control import client"),
    (imports_point_inward, "rhinoctl/ops/a.py", "from rhinoctl.control.client import Client"),
    (imports_point_inward, "rhinoctl/ops/a.py", "from rhinoctl import __version__"),
    (imports_point_inward, "rhinoctl/wire/a.py", "from . import clock"),
    (imports_point_inward, "rhinoctl/wire/__init__.py", "from .clock import SystemClock"),
    (third_parties_have_an_owner, "rhinoctl/spark/a.py", "from pyspark.sql import SparkSession"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "from pathlib import PurePosixPath"),
    (protocol_is_pure, "rhinoctl/protocol/a.py", "import pyarrow.compute"),
    (protocol_is_pure, "rhinoctl/wire/a.py", "import time"),
    (function_fits_a_screen, "rhinoctl/ids.py", LONG.replace("    x = 1\n", '    """\n\n"""\n', 1)),
    (catches_all_at_boundaries_only, "rhinoctl/ids.py", "try: f()\nexcept Exception: raise"),
    (catches_all_at_boundaries_only, "rhinoctl/cli/a.py", "try: f()\nexcept Exception: g()"),
]


@pytest.mark.parametrize(("rule", "path", "source"), BROKEN)
def test_a_breach_is_found(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize(("rule", "path", "source"), SOUND)
def test_sound_code_passes(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) == []
