"""Changes put into the source one at a time, and which of them no test notices.

    python benchmarks/mutants.py [--mutants 300] [--seed 1] [--only 'edge/network/*'] [--slow] [--show]
    python benchmarks/mutants.py --again FILE      those alone that an earlier run has printed as survivors

A mutant is the product with one small change in a module of sums, bytes, links, clock, privacy or thresholds:
a comparison or an operator is another one, a number is off by one, a term is left out, a condition is negated
or a statement is gone. ``TESTS`` says which test files matter for a module; a mutant that they pass has
survived and is printed with its diff. One whose tests fail is killed, as is one that takes three times the
processor time of its tests, or ten times their wall time (it hangs). Everything happens in a copy of the
repository; the draw follows the seed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import fnmatch
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = (
    "edge",
    "coordinator",
    "device_profiles",
    "tests",
    "docs",
    "scenarios",
    "benchmarks",
    "pyproject.toml",
)
_RUNS: Final = ("runs/test_hand_computed_round.py", "runs/test_accounting.py")
TESTS: Final[dict[str, tuple[str, ...]]] = {
    "edge/network/tcp.py": ("transport/test_tcp_model.py", *_RUNS),
    "edge/network/loss.py": ("transport/test_tcp_loss.py",),
    "edge/network/link.py": (
        *(
            "runs/test_fault_effects.py",
            "transport/test_link_conditions.py",
            "transport/test_link_outages.py",
            "transport/test_link_sharing.py",
        ),
        *(
            "transport/test_disturbances.py",
            "runs/test_byte_conservation.py",
            "runs/test_connections.py",
            *_RUNS,
        ),
    ),
    "edge/network/disturbances.py": ("transport/test_disturbances.py", "runs/test_fault_effects.py"),
    "edge/network/bottleneck.py": ("transport/test_link_sharing.py",),
    "edge/network/conditions.py": ("transport/test_link_conditions.py", "transport/test_link_outages.py"),
    "edge/network/playback.py": ("transport/test_link_playback.py",),
    "edge/device/simulated.py": (
        "device/test_frames_in_vain.py",
        "runs/test_byte_conservation.py",
        "runs/test_fault_effects.py",
        *_RUNS,
    ),
    "edge/device/compute_model.py": ("device/test_compute_model.py", "device/test_energy.py", *_RUNS),
    "edge/clock/virtual.py": ("engine/test_clock.py",),
    "edge/wire/codec.py": ("engine/test_codec.py",),
    "edge/learning/accumulators.py": (
        *("learning/test_accumulators.py", "learning/test_fedrecon.py", "aggregation/test_held_updates.py"),
        "learning/test_sum_groups.py",
    ),
    "edge/learning/tables.py": ("learning/test_rows_of_tables.py", "runs/test_sums_in_runs.py"),
    "edge/learning/server_optimizers.py": ("learning/test_server_optimizers.py", "runs/test_schedules.py"),
    "edge/learning/methods/linear_regression.py": (
        "learning/test_linear_regression.py",
        "runs/test_schedules.py",
    ),
    "edge/learning/methods/fedrecon/algorithm.py": (
        *("learning/test_fedrecon.py", "runs/test_schedules.py", "runs/test_rows_on_devices.py"),
    ),
    "edge/privacy/accounting.py": ("privacy/test_epsilon.py", "privacy/test_analytic_gaussian.py"),
    "edge/privacy/clipping.py": ("privacy/test_clipping.py", "privacy/test_protection.py"),
    "edge/crypto/noise.py": (
        "privacy/test_noise.py",
        "privacy/test_protection.py",
        "privacy/test_run_privacy.py",
    ),
    "edge/privacy/protection.py": ("privacy/test_protection.py", "privacy/test_run_privacy.py"),
    "benchmarks/rated_set.py": ("privacy/test_rated_set.py",),
    "edge/secagg/quantize.py": ("secagg/test_quantize.py", "secagg/test_noise_shares.py"),
    "coordinator/engine/aggregation/[bhr]*.py": (
        *("aggregation/test_ranges.py", "learning/test_robust_rules.py", "aggregation/test_held_updates.py"),
        *("runs/test_hostile_reports.py", "runs/test_robust_runs.py"),
    ),
    "coordinator/secure/sums/*.py": (
        *("engine/test_sums_of_a_run.py", "engine/test_mixed_rounds.py", "runs/test_secure_equals_plain.py"),
    ),
    "coordinator/results/tables/totals.py": ("metrics/test_round_batches.py", *_RUNS),
    "coordinator/results/tables/batches.py": (
        "metrics/test_round_batches.py",
        "metrics/test_tables_on_disk.py",
        *_RUNS,
    ),
    "coordinator/results/tables/metric_source.py": (
        "metrics/test_metric_source.py",
        "scenario/test_thresholds.py",
    ),
    "coordinator/scenario/threshold*.py": (
        *("scenario/test_thresholds.py", "metrics/test_metric_source.py", "runs/test_baseline.py"),
    ),
    "coordinator/engine/round_records.py": ("device/test_energy.py", "runs/test_connections.py", *_RUNS),
    "coordinator/engine/fleet.py": (
        *("runs/test_hand_computed_round.py", "runs/test_accounting.py", "runs/test_hostile_reports.py"),
        *("runs/test_fault_effects.py", "runs/test_determinism.py", "runs/test_shielded_runs.py"),
    ),
    "coordinator/results/learnt.py": ("runs/test_nothing_learnt.py", "runs/test_hostile_reports.py"),
    "coordinator/results/analysis/*.py": (
        "report/test_swept.py",
        *(
            "analysis/test_critical_path.py",
            "analysis/test_fairness_and_waste.py",
            "metrics/test_run_summary.py",
        ),
    ),
}
"""Modules, as patterns, with the test files below ``tests`` that matter for them."""

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_SLOWEST: Final = 3.0
"""Times the processor time that the tests take, after which a mutant is said to hang."""
_LONGEST: Final = 10
"""Times the wall time that the tests take, after which it is; the host may have other work."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: characters ``start`` to ``end`` of a module become ``text``."""

    module: str
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the changed source of the module."""
        return source[: self.start] + self.text + source[self.end :]


class _Sites(ast.NodeVisitor):
    """Collects the changes of one module; annotations, decorators and texts stay as they are."""

    def __init__(self, module: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._module = module
        lines = source.splitlines(keepends=True)
        self._lines = [line.encode() for line in lines]
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())

    def _add(self, node: ast.expr | ast.stmt, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        self.found.append(Mutant(self._module, start, end, text))

    def _instead(self, node: ast.expr, other: ast.expr) -> None:
        self._add(node, f"({ast.unparse(other)})")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body):
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave what is said of an error as it is."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave what holds anyway as it is."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave messages as they are."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            operators = [*node.ops]
            operators[place] = _COMPARISONS[type(operator)]()
            self._instead(node, ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            self._instead(node, ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))
            self._instead(node, node.left)
            self._instead(node, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._instead(node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._instead(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._instead(node, ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            self._instead(node, ast.Constant(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        self._negate(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node)

    def _negate(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._instead(node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)


def sites(folder: Path) -> list[Mutant]:
    """Return all mutants of the modules in ``TESTS``, in the order of the modules."""
    found: list[Mutant] = []
    for pattern in TESTS:
        for path in sorted(folder.glob(pattern)):
            source = path.read_text(encoding="utf-8")
            visitor = _Sites(str(path.relative_to(folder)), source)
            visitor.visit(ast.parse(source))
            found += visitor.found
    return found


def tests_of(module: str) -> tuple[str, ...]:
    """Return the test files that matter for a module."""
    return next(tests for pattern, tests in TESTS.items() if fnmatch.fnmatch(module, pattern))


class Bench:
    """A copy of the repository in which mutants live, one at a time."""

    def __init__(self, folder: Path, *, slow: bool) -> None:
        self.folder = folder
        self._marks = "slow or not slow" if slow else "not slow"
        self._limits_s: dict[tuple[str, ...], tuple[int, float]] = {}
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "peers"))
            else:
                shutil.copy(source, folder / name)

    def _exit_code(self, tests: tuple[str, ...], cpu_s: int | None, wall_s: float | None) -> int:
        files = [f"tests/{name}" for name in tests]
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        limited = ["prlimit", f"--cpu={cpu_s}"] if cpu_s is not None else []
        command = [*limited, *pytest, "-m", self._marks, *files]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=self.folder, env=environment, timeout=wall_s, capture_output=True, check=False
        ).returncode

    def _limits(self, tests: tuple[str, ...]) -> tuple[int, float]:
        """Return the processor and wall time that a mutant may take, s; from the product as it is.

        Raises
        ------
        RuntimeError : its tests fail.
        """
        if tests not in self._limits_s:
            began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            if self._exit_code(tests, None, None) != 0:
                raise RuntimeError(f"without any mutant tests fail: {', '.join(tests)}")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            wall_s = time.perf_counter() - began_s
            self._limits_s[tests] = 30 + int(_SLOWEST * cpu_s), 60.0 + _LONGEST * wall_s
        return self._limits_s[tests]

    def outcome(self, mutant: Mutant) -> str:
        """Return what became of a mutant: ``killed``, ``hangs`` or ``survived``."""
        path, tests = self.folder / mutant.module, tests_of(mutant.module)
        limits = self._limits(tests)
        source = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.apply(source), encoding="utf-8")
            code = self._exit_code(tests, *limits)
            if code in (-signal.SIGXCPU, -signal.SIGKILL):
                return "hangs"
            return "survived" if code == 0 else "killed"
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            path.write_text(source, encoding="utf-8")


def diff_of(folder: Path, mutant: Mutant) -> Iterator[str]:
    """Yield the lines that a mutant changes."""
    source = (folder / mutant.module).read_text(encoding="utf-8")
    before, after = source.splitlines(), mutant.apply(source).splitlines()
    yield from difflib.unified_diff(before, after, mutant.module, mutant.module, n=1, lineterm="")


def changed_lines(folder: Path, mutant: Mutant) -> str:
    """Return the diff of a mutant without where in the module it is, which other changes move."""
    return "\n".join(line for line in diff_of(folder, mutant) if line[:2] not in ("@@", "--", "++")) + "\n"


def main() -> int:
    """Draw mutants, run their tests, print the survivors; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=300, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="modules that they are drawn from")
    parser.add_argument("--slow", action="store_true", help="run the slow tests, too")
    parser.add_argument("--again", type=Path, metavar="FILE", help="what an earlier run has printed")
    parser.add_argument("--show", action="store_true", help="print the mutants, and run nothing")
    arguments = parser.parse_args()
    every = [one for one in sites(ROOT) if fnmatch.fnmatch(one.module, arguments.only)]
    if arguments.again is None:
        drawn = random.Random(arguments.seed).sample(every, min(arguments.mutants, len(every)))
        print(f"{len(drawn)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
    else:
        printed = arguments.again.read_text(encoding="utf-8")
        modules = {line.removeprefix("--- ") for line in printed.splitlines() if line.startswith("--- ")}
        drawn = [one for one in every if one.module in modules and changed_lines(ROOT, one) in printed]
        print(f"{len(drawn)} of {len(every)} mutants, survivors of {arguments.again}", flush=True)
    if arguments.show:
        for mutant in drawn:
            print("\n".join(diff_of(ROOT, mutant)), "\n")
        return 0
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), slow=arguments.slow)
        for number, mutant in enumerate(drawn, 1):
            outcome = bench.outcome(mutant)
            counts[outcome] += 1
            if outcome == "survived":
                print(f"\n#{number} survived", *diff_of(bench.folder, mutant), sep="\n", flush=True)
            print(f"\r{number} of {len(drawn)}", end="", file=sys.stderr, flush=True)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
