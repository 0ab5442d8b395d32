"""Runs the array API standard's own test suite on resilin and writes docs/reference/array_api.md.

python scripts/array_api_suite.py SUITE [--python PYTHON] [--examples N] [--write]

SUITE is a checkout of github.com/data-apis/array-api-tests with its submodule, PYTHON an interpreter with the suite's
requirements and resilin's (hypothesis, ndindex, pytest-json-report, numpy, ml_dtypes). Nothing is skipped or expected
to fail. Exit code 1 when a test fails for which REASONS has no reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "array_api.md"

# The beginning of a failing test's name -> why it fails. The first that fits counts.
_FLOOR = (
    'the standard allows NaN and -1.0 here ("to match Python behavior"); PyTorch gives them, and so do we: '
    "the operator `//` belongs to PyTorch's tensors"
)
REASONS = {
    "test_binary[floor_divide(": _FLOOR,
    "test_binary[__floordiv__(": _FLOOR,
    "test_iop[__ifloordiv__(": _FLOOR,
    "test_unary[tanh(real(x_i) is +infinity": (
        "the zero imaginary part gets the sign that C's ctanh gives it, that of sin(2 * imag); equal as numbers"
    ),
    "test_unary[expm1((real(x_i) is +0": "expm1(-0 + 0j) keeps the sign of its zero; equal as numbers",
}

HEAD = """# The Python array API standard

`resilin.array_api` is the namespace of the standard's version 2024.12, with the extensions `linalg` and `fft`;
`x.__array_namespace__()` gives it, and libraries that are written for the standard, such as scipy with
`SCIPY_ARRAY_API=1`, take and give tensors (`tests/array_api/test_scipy.py`). `resilin` itself keeps PyTorch's names and
meanings. Made by `python scripts/array_api_suite.py SUITE --write` from a run of the standard's
[own suite](https://github.com/data-apis/array-api-tests), in which nothing is skipped or expected to fail beforehand.
"""

DIFFERENCES = """
## What no test of the suite shows

- `x.size` is a method, as in PyTorch, not the number of elements; `x.numel()` gives that.
- `sign(NaN)` is NaN here and 0 in `resilin`, as in PyTorch.
- `x.mT`, `x.T`, operators and indexing are those of PyTorch's tensors: indexing past the standard (lists, tensors of
  indices) follows numpy's and PyTorch's rules, and `x @ y` needs equal dtypes, where `matmul` here promotes.
- Mixed kinds promote (int64 with float32 is float32), which the standard leaves open.
"""


def run(suite: Path, python: str, examples: int, report: Path) -> None:
    """Run the whole suite; what it found is in `report`, in the form of JUnit."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "ARRAY_API_TESTS_MODULE": "resilin.array_api"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=no", "--disable-deadline"]
    command += ["--max-examples", str(examples), f"--junitxml={report}", "array_api_tests"]
    subprocess.run(command, cwd=suite, env=env, check=False)


def outcomes(report: Path) -> list[tuple[str, str, str]]:
    """(file, test, "passed" or "failed" or "skipped: why") of every test."""
    found = []
    for case in ET.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        state = "failed" if bad else "passed" if skipped is None else f"skipped: {skipped.get('message')}"
        found.append((_file(case.get("classname", "")), case.get("name", ""), state))
    return found


def _file(classname: str) -> str:
    """`test_linalg` of `array_api_tests.test_linalg.TestX`."""
    return next((part for part in classname.split(".") if part.startswith("test_")), classname)


def reason(test: str) -> str:
    """Why `test` fails; empty when nobody has said so."""
    return next((why for start, why in REASONS.items() if test.startswith(start)), "")


def page(found: list[tuple[str, str, str]], examples: int) -> str:
    """The text of docs/reference/array_api.md."""
    counts = Counter((file, state.partition(":")[0]) for file, _, state in found)
    total = Counter(state.partition(":")[0] for _, _, state in found)
    ran = total["passed"] + total["failed"]
    lines = [HEAD, f"**{total['passed']} of {ran} tests pass** ({100 * total['passed'] / ran:.1f}%), with {examples} "]
    lines[-1] += f"random examples each; {total['skipped']} say that there is nothing to test.\n"
    lines += ["| file | passed | failed | skipped |", "|---|---|---|---|"]
    for file in sorted({file for file, _, _ in found}):
        row = (counts[file, state] for state in ("passed", "failed", "skipped"))
        lines.append(f"| `{file}` | {' | '.join(map(str, row))} |")
    lines += ["", "## Failing tests, and why", "", "| test | reason |", "|---|---|"]
    for _, test, state in found:
        if state == "failed":
            lines.append(f"| `{test.replace('|', chr(92) + '|')}` | {reason(test) or '**not explained**'} |")
    skips = Counter(state.partition(": ")[2].strip().splitlines()[0] for _, _, state in found if state[0] == "s")
    lines += ["", "## Skipped by the suite itself", "", "| tests | what the suite says |", "|---|---|"]
    lines += [f"| {count} | {why.split(' Note ')[0]} |" for why, count in sorted(skips.items())]
    return "\n".join(lines) + "\n" + DIFFERENCES


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="a checkout of array-api-tests")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the suite")
    parser.add_argument("--examples", type=int, default=100, help="random examples of each test (100)")
    parser.add_argument("--write", action="store_true", help="write the page instead of printing it")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run(args.suite.resolve(), args.python, args.examples, report)
        found = outcomes(report)
    text = page(found, args.examples)
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    unexplained = [test for _, test, state in found if state == "failed" and not reason(test)]
    for test in unexplained:
        print(f"no reason is given for {test}", file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
