"""Change the package's code in small ways and count how many changes the tests notice.

    python tests/mutants.py [--count 100] [--seed 0] [--other TREE] [--tests SECONDS]

A mutant has one comparison, operator, number or Boolean changed, or one statement left out. It is
judged by the test file of its module alone. With --other only code that another checkout has, too,
is changed, so that the same mutants can be counted in both.
"""

import argparse
import ast
import copy
import hashlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "accelerate", "hypothesis.strategies", "matplotlib.pyplot", "onnxruntime", "pycocoevalcap",
    "pytest", "sacrebleu", "timm", "tokenizers", "torch._dynamo", "torchvision", "typer.testing",
)  # fmt: skip
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip


def mutate(node: ast.AST) -> bool:
    """Change a node in place; whether there is something to change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.AugAssign):
        node.op = SWAPS.get(type(node.op), ast.Sub)()
    else:
        return False
    return True


def sites(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Each node inside a function that can be changed, with a name that other trees know it by."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            for number, node in enumerate(ast.walk(statement)):
                if mutate(copy.deepcopy(node)):
                    yield f"{function.name}: {ast.unparse(statement)}: {number}", node


def names(file: Path) -> set[str]:
    return {name for name, _ in sites(ast.parse(file.read_text(encoding="utf-8")))}


def order(seed: int, module: Path, name: str) -> str:
    """A random place that code which is added elsewhere does not change."""
    return hashlib.sha256(f"{seed} {module} {name}".encode()).hexdigest()


def test_file(module: Path) -> Path | None:
    """The test file of a module: test_folder_module, test_module or test_folder."""
    folder = "" if module.parent.name == "captionlab" else module.parent.name
    for stem in (f"{folder}_{module.stem}", module.stem, folder):
        file = ROOT / "tests" / f"test_{stem}.py"
        if file.exists():
            return file
    return None


class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed syntax tree."""

    def __init__(self, file: Path, tree: ast.Module):
        parts = file.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts)
        self.file = file
        self.code = compile(ast.fix_missing_locations(tree), str(file), "exec")

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self.file))

    def exec_module(self, module):
        module.__file__ = str(self.file)
        exec(self.code, module.__dict__)


def passes(tests: Path, mutant: MutatedModule | None, seconds: float) -> bool:
    """Whether the tests pass within a time, in a child of this process."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(seconds) + 1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        import pytest

        if mutant:
            sys.meta_path.insert(0, mutant)
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", str(tests)]))
    return os.waitpid(child, 0)[1] == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--tests", type=float, default=40, help="longest time of a test file")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for library in HEAVY:  # children find them imported
        with suppress(ImportError):
            importlib.import_module(library)

    candidates = []
    for file in sorted(ROOT.glob("captionlab/**/*.py")):
        tests = test_file(file)
        twin = options.other / file.relative_to(ROOT) if options.other else file
        if file.stem.startswith("_") or tests is None or not twin.exists():
            continue
        candidates += [(file, tests, name) for name in sorted(names(file) & names(twin))]
    candidates.sort(key=lambda one: order(options.seed, one[0].relative_to(ROOT), one[2]))
    good: dict[Path, bool] = {}
    killed = tried = 0
    for file, tests, name in candidates:
        if tried == options.count:
            break
        if tests not in good:
            good[tests] = passes(tests, None, options.tests)
        if not good[tests]:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        mutate(dict(sites(tree))[name])
        start = time.monotonic()
        survived = passes(tests, MutatedModule(file, tree), options.tests + 20)
        tried += 1
        killed += not survived
        place = f"{file.relative_to(ROOT)} {' '.join(name.split())[:90]}"
        took = time.monotonic() - start
        print(f"{'survived' if survived else 'killed  '} {took:5.1f} s {place}", flush=True)
    print(
        f"{killed} of {tried} mutants killed; files too slow or failing: "
        f"{sorted(str(test.name) for test, fine in good.items() if not fine)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
