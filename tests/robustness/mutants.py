"""Small changes of the code, one at a time: do the tests notice?

    python tests/robustness/mutants.py map                # which tests run which line: half an hour
    python tests/robustness/mutants.py run --count 200    # each change, and the tests that run its line
    python tests/robustness/mutants.py report             # the score, and what nobody noticed

cosmic-ray makes the changes, in a copy of the checkout. Places are drawn with a fixed seed, and one change
for each. Of the tests that run the changed line the quick ones are run, until one fails: a change that only a
long test would notice counts as unnoticed. A run that is stopped goes on where it was.
"""

import argparse
import ast
import json
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "mutants"
TREE, COVERED, DURATIONS = HOME / "tree", HOME / "coverage.sqlite", HOME / "durations.xml"
RESULTS = HOME / "results.jsonl"
UNCHANGED = HOME / "unchanged"  # the code as it is copied: a run that is killed leaves a change in the tree
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")  # no test can notice these, and why
FOLDERS = ("theory", "probing", "safe", "training", "sweeps", "bench")
SEED = 57
# Every swap of `|` is one between types or dicts, which fails at once: they would only raise the score.
TRIVIAL = "core/ReplaceBinaryOperator_BitOr"
BUDGET = 60.0  # seconds of tests a change, as `map` measured them
TIMEOUT = 600.0  # a change that makes tests hang is noticed
MEMORY = 12 << 30  # and so is one that fills it
QUICK = "not slow and not experiments and not system and not browser and not repeated"
# What says nothing of these folders' numbers, and the slowest.
LEFT_OUT = ["experiments", "models", "devices", "interventions", "robustness/test_fuzz_files.py"]
LEFT_OUT += ["robustness/test_fuzz_report.py", "test_arguments.py"]
LEFT_OUT += [f"test_{name}.py" for name in ("house", "docs", "readme", "wheel")]
# These look at every module, at lines that run when it is imported: the map names them of no line.
OF_ALL = ("tests/test_frozen.py", "tests/test_settings.py")


def copy_checkout() -> None:
    """What git knows and what it would, as it lies here."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    shutil.rmtree(TREE, ignore_errors=True)
    for name in filter(None, names):
        if (ROOT / name).exists():  # else it is deleted and still known
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)
    shutil.rmtree(UNCHANGED, ignore_errors=True)
    shutil.copytree(TREE / "mechmarkov", UNCHANGED)


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK, *arguments]


def in_tree() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(TREE), "PYTHONDONTWRITEBYTECODE": "1"}


def map_tests(names: list[str]) -> None:
    """Run the tests once and note which run which line, and how long each takes."""
    copy_checkout()
    sources = "".join(f"    mechmarkov/{name}\n" for name in FOLDERS)
    (HOME / "coveragerc").write_text(f"[run]\nsource =\n{sources}data_file = {COVERED}\n", encoding="utf-8")
    covered = ["--cov", f"--cov-config={HOME / 'coveragerc'}", "--cov-context=test", "--cov-report="]
    left_out = [f"--ignore=tests/{name}" for name in LEFT_OUT]
    command = pytest_command(
        *(f"tests/{name}" for name in names or [""]), *left_out, *covered, f"--junitxml={DURATIONS}"
    )
    subprocess.run(command, cwd=TREE, env=in_tree(), check=True)


def places() -> dict[tuple[Any, ...], list[Any]]:
    """Every place that can be changed, and its changes."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.work_db import WorkDB, use_db

    modules = [path for name in FOLDERS for path in sorted(Path("mechmarkov", name).rglob("*.py"))]
    found = defaultdict(list)
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init(modules, database, {})
        for item in database.work_items:
            (mutation,) = item.mutations
            if not mutation.operator_name.startswith(TRIVIAL):
                found[str(mutation.module_path), mutation.start_pos, mutation.end_pos].append(mutation)
    return {place: sorted(some, key=str) for place, some in sorted(found.items())}


def drawn(count: int, seed: int) -> list[Any]:
    """So many places, and a change of each."""
    every, draw = places(), random.Random(seed)
    return [draw.choice(every[place]) for place in draw.sample(list(every), count)]


class Tests:
    """Which tests run a line, the nearest and quickest first."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(COVERED))
        self.data.read()
        self.seconds = {}
        for case in ElementTree.parse(DURATIONS).iter("testcase"):
            file = case.attrib["classname"].replace(".", "/") + ".py"
            self.seconds[f"{file}::{case.attrib['name']}"] = float(case.attrib["time"])

    def of(self, module: Path, line: int) -> list[str]:
        """The tests of a statement; of one that runs at import, those that run anything of its module.

        Last come the module's examples, and what looks at all modules.
        """
        by_line = self.data.contexts_by_lineno(str(TREE / module))
        lines = set(statement_of(module, line))
        found = self._named(by_line, lines) or self._named(by_line, set(by_line))
        near = module.parts[1]
        order = sorted(found, key=lambda test: (near not in test, self.seconds.get(test, BUDGET)))
        chosen, spent = [], 0.0
        for test in order:
            spent += self.seconds.get(test, BUDGET)
            if chosen and spent > BUDGET:
                break
            chosen.append(test)
        name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
        return [*chosen, f"tests/test_doctests.py::test_examples[{name}]", *OF_ALL]

    def _named(self, by_line: dict[int, list[str]], lines: set[int]) -> set[str]:
        contexts = {context for line in lines for context in by_line.get(line, []) if context}
        named = {context.rpartition("|")[0] for context in contexts}
        # What a fixture of a module runs is noted of the first test that asks for it.
        shared = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        return (named & self.seconds.keys()) | {
            test for test in self.seconds if test.partition("::")[0] in shared
        }


def statement_of(module: Path, line: int) -> range:
    """The lines of the innermost statement that holds a line; of a function only its first ones."""
    spans = []
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.stmt):
            decorators = [each.lineno for each in getattr(node, "decorator_list", [])]
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            spans.append(range(min([node.lineno, *decorators]), max(node.lineno, end or 0) + 1))
    # `except` and `else` belong to a statement and are none.
    return max((span for span in spans if line in span), key=min, default=range(line, line + 1))


def changed_lines(diff: str) -> tuple[str, str]:
    """What a change takes away and what it puts there."""
    lines = [line for line in diff.splitlines() if line[:3] not in ("---", "+++")]
    return tuple("\n".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")  # type: ignore[return-value]


def run(count: int, seed: int, only: str | None) -> None:
    """Make every change that was drawn and is not done yet, and run its tests."""
    from cosmic_ray.mutating import mutate_and_test

    os.chdir(TREE)
    os.environ.update(in_tree())
    shutil.copytree(UNCHANGED, "mechmarkov", dirs_exist_ok=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    mutations, tests = drawn(count, seed), Tests()
    done = {(one["file"], one["operator"], one["occurrence"]) for one in results()}
    for number, mutation in enumerate(mutations):
        key = (str(mutation.module_path), mutation.operator_name, mutation.occurrence)
        if key in done or (only and only not in key[0]):
            continue
        chosen = tests.of(mutation.module_path, mutation.start_pos[0])
        (HOME / "tests.txt").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        command = shlex.join(pytest_command("-x", f"@{HOME / 'tests.txt'}"))
        began = time.monotonic()
        found = mutate_and_test([mutation], command, TIMEOUT)
        before, after = changed_lines(found.diff or "")
        row = {
            **dict(zip(("file", "operator", "occurrence"), key, strict=True)),
            "line": mutation.start_pos[0],
            "before": before,
            "after": after,
            "outcome": str(found.test_outcome.value),
            "tests": len(chosen),
            "seconds": round(time.monotonic() - began, 1),
            "last": (found.output or "").strip().splitlines()[-1:],
        }
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        where = f"{key[0]}:{row['line']}"
        print(f"{number + 1}/{count} {row['outcome']} {where} {before!r} -> {after!r}", flush=True)


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()] if RESULTS.exists() else []


def report() -> None:
    """The score, without what no test can notice."""
    known = {(e["file"], e["before"], e["after"]) for e in json.loads(EQUIVALENT.read_text("utf-8"))}
    rows = results()
    alike = [row for row in rows if (row["file"], row["before"], row["after"]) in known]
    rest = [row for row in rows if row not in alike]
    unnoticed = [row for row in rest if row["outcome"] == "survived"]
    for row in unnoticed:
        print(f"{row['file']}:{row['line']} ({row['tests']} tests)\n  - {row['before']}\n  + {row['after']}")
    noticed = len(rest) - len(unnoticed)
    print(f"{len(rows)} changes, {len(alike)} of them equivalent")
    print(f"{noticed} of {len(rest)} noticed: {noticed / len(rest):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["map", "run", "report"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", help="Part of the name of a file.")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="Of `map`: less time, and at most as many noticed."
    )
    chosen = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    if chosen.what == "map":
        map_tests(chosen.tests)
    elif chosen.what == "run":
        run(chosen.count, chosen.seed, chosen.only)
    else:
        report()
