"""The order of the packages, the direction of imports, and the sizes of files and names."""

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import attnscope

PACKAGE = Path(attnscope.__file__).parent
ROOT = PACKAGE.parent
ORDER = (  # from the ground up: a package imports from those before it, and from no other
    "text version < errors < registry lazy limits private progress"
    " < attention < records < scores < axes < fused"
    " < capture < measures < comparison < storage < network < training < models < views < questions < render"
    " < notebook < browser < cli < __main__"
)
LAYER = {name: number for number, names in enumerate(ORDER.split("<")) for name in names.split()}
BANNED = {
    "axes": {"torch", "transformers"},
    "measures": {"transformers"},
    "views": {"rich", "matplotlib", "torch"},
}
AT_THE_ROOT = {
    "pyproject.toml",
    "attnscope",
    "tests",
    "sample_inputs",
    "README.md",
    "LICENSE",
}  # and dotfiles
MOST_LINES = 600
LONGER: dict[str, str] = {}  # files with more, each with its reason
MOST_IMPORTS = 0.065  # of all lines
TEST_NAME_CHARACTERS = 70  # with its `test_`
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone of the repository")
def test_root_holds_only_what_belongs_there():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name.partition("/")[0] for name in files.splitlines()}
    assert {name for name in names if not name.startswith(".")} == AT_THE_ROOT


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in SOURCES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(path: Path):
    """Every absolute name that a file imports."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name: str) -> str:
    """The module that a name comes from."""
    while name not in MODULES and "." in name:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_package_imports_only_from_lower_packages(path):
    package = package_of(path)
    for name in imports(path):
        parts = name.split(".")
        library = name.removeprefix("attnscope.lazy.").split(".")[0]
        assert library not in BANNED.get(package, ()), f"{path} imports {name}"
        assert library != "click", f"{path} imports {name}"
        assert library != "typer" or package == "cli", f"{path} imports {name}"
        if parts[0] == "attnscope" and parts[1] != package:
            assert LAYER[parts[1]] < LAYER[package], f"{path} imports {name}, which does not stand below it"


def test_imports_have_no_cycle():
    graph = {module_of(path): {file_of(name) for name in imports(path)} & MODULES for path in SOURCES}
    for module, names in graph.items():  # a package's own __init__ only lists what its files hold
        graph[module] = {name for name in names if not f"{module}.".startswith(f"{name}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_files_are_in_a_package_short_and_not_named_utils():
    assert SOURCES
    for path in SOURCES:
        assert package_of(path) in LAYER, path
        assert "utils" not in path.stem
        lines = len(path.read_text("utf-8").splitlines())
        assert lines <= MOST_LINES or path.name in LONGER, path


def test_class_names_are_unique():
    nodes = (node for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))
    names = Counter(node.name for node in nodes)
    assert not [name for name, count in names.items() if count > 1]


def test_share_of_import_lines_is_small():
    lines = [line for path in SOURCES for line in path.read_text("utf-8").splitlines()]
    imports = [line for line in lines if re.match(r"\s*(from|import) ", line)]
    assert len(imports) <= MOST_IMPORTS * len(lines)


def test_names_of_tests_are_short_and_unique():
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef))
        names = Counter(node.name for node in nodes if node.name.startswith("test_"))
        assert not [name for name in names if len(name) > TEST_NAME_CHARACTERS], path
        assert not [name for name, count in names.items() if count > 1], path


FOLDERS = [ROOT / name for name in (".github", "attnscope", "tests", "sample_inputs")]
FOUND = [*ROOT.glob("*.md"), *(path for folder in FOLDERS[:3] for path in folder.rglob("*.md"))]
DOCUMENTS = sorted(path for path in FOUND if path.name != "CHANGELOG.md")  # which tells of what was
PATHS = [path.parts for folder in FOLDERS for path in folder.rglob("*.py")]
NAMES = {"/".join(parts[-count:]) for parts in PATHS for count in range(1, len(parts))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_files_named_in_documents_exist(document):
    named = set(re.findall(r"`(?:python )?([a-z_/]+\.py)`", document.read_text("utf-8")))
    assert named - NAMES <= {"utils.py"}  # the one name that CONTRIBUTING.md forbids
