"""Plant faults in a copy of the package, one at a time, and ask which of them the tests find.

    python -m tests.tools.mutants [--each 10] [--seed 0] [--packages capture,measures] [--checkout DIR]

A fault is one changed operator, constant or condition, chosen by the seed among all that a package has. The
quick tests of the package run until the first failure; a fault that none of them finds is printed with its
place. It takes a minute a fault, more where none fails.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("capture", "measures", "fused", "views", "storage", "models")
TESTS = {"views": ("views", "render"), "models": ("models", "cli/test_cache.py")}
"""Folders of tests of a package that are not its own alone."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


class Mutator(ast.NodeTransformer):
    """Changes the ``chosen``-th place that can be changed; counts them where none is chosen."""

    def __init__(self, chosen: int | None = None) -> None:
        self.chosen, self.seen, self.line = chosen, 0, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.arguments):
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = node.value and self.visit(node.value)
            return node
        self.generic_visit(node)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED and self._is_hit(node):
            node.ops[0] = SWAPPED[type(node.ops[0])]()
        elif isinstance(node, (ast.BoolOp, ast.BinOp)) and self._is_swapped(node) and self._is_hit(node):
            node.op = SWAPPED[type(node.op)]()
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool) and self._is_hit(node):
            return ast.copy_location(ast.Constant(node.value is not True and node.value + 1), node)
        return node

    def _is_hit(self, node: ast.expr) -> bool:
        self.seen += 1
        if self.seen - 1 == self.chosen:
            self.line = node.lineno
        return self.seen - 1 == self.chosen

    def _is_swapped(self, node: ast.BoolOp | ast.BinOp) -> bool:
        """Whether it does not read ``A | B`` of types, nor join texts."""
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
        texts = [side for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)]
        return type(node.op) in SWAPPED and not texts


def places(package: Path) -> Iterator[tuple[Path, int]]:
    """Every place of a package that can be changed."""
    for path in sorted(package.rglob("*.py")):
        counter = Mutator()
        counter.visit(ast.parse(path.read_text("utf-8")))
        yield from ((path, number) for number in range(counter.seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[2])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(asked.checkout, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        total = 0
        for package in asked.packages.split(","):
            known = list(places(copy / "attnscope" / package))
            chosen = random.Random(asked.seed).sample(known, min(asked.each, len(known)))
            found = sum(
                _is_found(copy, path, number, TESTS.get(package, (package,))) for path, number in chosen
            )
            print(f"{package}: {found} of {len(chosen)} found", flush=True)
            total += found
        print(f"{total} found")


def _is_found(copy: Path, path: Path, number: int, folders: tuple[str, ...]) -> bool:
    whole = path.read_text("utf-8")
    mutator = Mutator(number)
    tree = mutator.visit(ast.parse(whole))
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not subprocess and not browser"]
    command += [str(copy / "tests" / folder) for folder in folders]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=900)
        found = ran.returncode != 0
    except subprocess.TimeoutExpired:
        found = True
    finally:
        path.write_text(whole, "utf-8")
    if not found:
        print(f"not found: {path.relative_to(copy)}:{mutator.line}", flush=True)
    return found


if __name__ == "__main__":
    main()
