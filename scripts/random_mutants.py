"""Random mutants: change one operator, constant, condition or statement, and check that a test fails.

    python scripts/random_mutants.py launcher                120 mutants with seed 1
    python scripts/random_mutants.py launcher --seed 7 --count 40
    python scripts/random_mutants.py trainer --only 3 17     only these numbers of the list

Each mutant is applied to a temporary copy of the repository. The quick tests that run its line go
first, then the slow ones of its folder. Prints a line per mutant and exits with 1 if fewer than nine
of ten were killed. Survivors that change nothing a user can see are listed in docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {  # where mutants are made, below each package
    "launcher": (
        "diagnosis", "engines", "plan", "start", "stop", "follow", "runs", "supervisor", "push",
    ),
    "trainer": (".",),
}  # fmt: skip
EVERY_TEST = {"launcher": ("tests/launcher", "tests/test_layers.py"), "trainer": ("tests/trainer",)}
QUICK = {"launcher": "not cluster and not real and not slow", "trainer": "not cluster"}
Runs = dict[str, dict[int, set[str]]]  # file -> line -> tests that run it
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
ENOUGH = 0.9  # share of the mutants that must be killed
NO_TESTS = 5  # pytest's exit code
TIMEOUT = 600  # seconds; a mutant that hangs is killed
TIMES = itertools.count(1_000_000_000)  # unix seconds
SWAPS: dict[type[ast.AST], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "+",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str  # below the repository
    line: int
    start: int  # offset in the source, in characters
    end: int
    new: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def describe(self, source: str) -> str:
        old = " ".join(source[self.start : self.end].split())
        return f"{self.file}:{self.line}: {old[:60]} -> {self.new}"


def mutants_of(path: Path) -> list[Mutant]:
    """Return every change of one place that this script can make in a file."""
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def offset(line: int, column: int) -> int:  # ast counts bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def made(node: ast.expr | ast.stmt, new: str) -> Mutant:
        begin = offset(node.lineno, node.col_offset)
        end = offset(node.end_lineno or 0, node.end_col_offset or 0)
        return Mutant(str(path.relative_to(ROOT)), node.lineno, begin, end, new)

    tree = ast.parse(source)
    skipped = set(annotations(tree))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for new in changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            found.append(made(node, new))
    return sorted(set(found), key=lambda each: (each.start, each.end, each.new))


def changes(node: ast.AST) -> Iterator[str]:
    """Yield each text that may replace a node."""
    match node:
        case ast.Compare(left, [operator], [right]):
            yield f"{ast.unparse(left)} {SWAPS[type(operator)]} {ast.unparse(right)}"
        case ast.BoolOp(operator, values):
            joined = f" {SWAPS[type(operator)]} ".join(
                f"({ast.unparse(value)})" for value in values
            )
            yield f"({joined})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS and not texts(left, right):
            new = SWAPS[type(operator)]
            yield f"(({ast.unparse(left)}) {new} ({ast.unparse(right)}))"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield str(value + 1)
        case ast.Return(value) if value is not None and not is_none(value):
            yield "return None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def texts(*nodes: ast.expr) -> bool:
    """Return whether one of the operands is text, which supports only addition."""
    return any(
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def annotations(tree: ast.AST) -> Iterator[int]:
    """Yield the ids of nodes that tests cannot notice or that are prose: annotations, decorators, texts."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if part := getattr(node, name, None):
                yield from (id(each) for each in ast.walk(part))
        if isinstance(node, ast.JoinedStr):
            yield from (id(each) for each in ast.walk(node))
        for decorator in getattr(node, "decorator_list", ()):
            yield from (id(each) for each in ast.walk(decorator))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("TypeVar", "NewType", "cast"):
            yield from (id(each) for each in ast.walk(node))


def chosen(package: str, count: int, seed: int) -> list[Mutant]:
    files = sorted(
        path for folder in FOLDERS[package] for path in (ROOT / package / folder).rglob("*.py")
    )
    every = [mutant for path in files for mutant in mutants_of(path)]
    return random.Random(seed).sample(every, min(count, len(every)))


def copy_of_repository(folder: str) -> Path:
    copy = Path(folder)
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in tracked:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def who_runs_what(package: str, copy: Path, jobs: int) -> Runs:
    """Run the quick tests and return those that run each line. Child processes are not observed."""
    command = [sys.executable, *PYTEST, "-m", QUICK[package], "-n", str(jobs), "--cov", package]
    command += ["--cov-context", "test", "--cov-report", "", *EVERY_TEST[package]]
    subprocess.run(command, cwd=copy, env=environment(copy), stdout=subprocess.DEVNULL)
    data = CoverageData(str(copy / ".coverage"))
    data.read()
    return {
        str(Path(file).relative_to(copy)): {
            line: {re.split(r"\[|\|", context)[0] for context in contexts} - {""}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def killers(package: str, mutant: Mutant, runs: Runs) -> Iterator[list[str]]:
    """Yield pytest arguments: for quick tests that run the line, its folder's first; then for slow ones."""
    parts = Path(mutant.file).parts
    own = f"tests/{package}/{parts[1] if package == 'launcher' else f'test_{parts[-1]}'}"
    lines = runs.get(mutant.file, {})
    near = (lines[line] for line in range(mutant.line, mutant.line - 10, -1) if line in lines)
    # a constant runs when its module is imported, and any test of the module may depend on it
    if tests := next(near, None) or set().union(*lines.values()):
        yield ["-m", QUICK[package], *sorted(tests, key=lambda test: not test.startswith(own))]
    if package == "launcher":
        yield ["-m", "not cluster and (real or slow)", own]


def environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}


def write(path: Path, source: str) -> None:
    """Write a file with a new time stamp, without which Python would not compile the file again."""
    path.write_text(source)
    second = next(TIMES)
    os.utime(path, (second, second))


def failure(copy: Path, *arguments: str) -> str:
    """Return the first test that fails in a copy of the repository, or "" if none does.

    Leaves out the test's parameters, which may contain anything."""
    try:
        done = subprocess.run(
            [sys.executable, *PYTEST, "-x", "--timeout", "120", *arguments],
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment(copy),
        )
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode in (0, NO_TESTS):
        return ""
    names = re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.MULTILINE)
    return names[0] if names else f"pytest, exit code {done.returncode}"


def killed_by(package: str, mutant: Mutant, copy: Path, runs: Runs) -> str:
    """Return what killed the mutant, or "". A test that also fails without the mutant does not count."""
    path = copy / mutant.file
    source = path.read_text()
    for arguments in killers(package, mutant, runs):
        unstable: list[str] = []
        while True:
            write(path, mutant.applied(source))
            test = failure(copy, *arguments, *(f"--deselect={each}" for each in unstable))
            write(path, source)
            if not test:
                break
            if "::" not in test or not failure(copy, test):
                return test
            unstable.append(test)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", choices=[*FOLDERS])
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="numbers in the list")
    parser.add_argument("--list", action="store_true", help="print the mutants; run nothing")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutants = chosen(options.package, options.count, options.seed)
    if options.only:
        mutants = [mutants[number - 1] for number in options.only]
    names = {
        mutant: f"{number} {mutant.describe((ROOT / mutant.file).read_text())}"
        for number, mutant in zip(options.only or range(1, len(mutants) + 1), mutants, strict=True)
    }
    if options.list:
        print("\n".join(names.values()))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        unchanged = copy_of_repository(f"{folder}/unchanged")
        runs = who_runs_what(options.package, unchanged, options.jobs)
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            copies.put(copy_of_repository(f"{folder}/{job}"))

        def run(mutant: Mutant) -> bool:
            copy, began = copies.get(), time.monotonic()
            try:
                what = killed_by(options.package, mutant, copy, runs)
            finally:
                copies.put(copy)
            word = f"killed by {what}" if what else "SURVIVED"
            print(f"{names[mutant]}: {word} ({time.monotonic() - began:.0f} s)", flush=True)
            return bool(what)

        with ThreadPoolExecutor(options.jobs) as pool:
            killed = sum(pool.map(run, mutants))
    print(f"{killed} of {len(mutants)} killed, seed {options.seed}")
    return 0 if killed >= ENOUGH * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
