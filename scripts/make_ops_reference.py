"""Makes docs/reference/ops.md from the op registry.

python scripts/make_ops_reference.py            print it
python scripts/make_ops_reference.py --write    write the file
"""

from __future__ import annotations

import sys
from pathlib import Path

from resilin.core.ops.registry import Op
from resilin.testing import check_ops, coverage, references

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "ops.md"

HEAD = """# Operations

Made by `python scripts/make_ops_reference.py --write` from the declarations in `resilin/core/ops`; a test says when it
is out of date. These are the operations that everything in `resilin` is composed of, not the public functions, whose
names and arguments are PyTorch's.

## Coverage

What `python -m resilin.testing.coverage` counts. The tests are `tests/core/numerics/test_ops_generated.py`.

| what | of | share | without |
|---|---|---|---|
"""

TABLE = """
## All operations

- *Derivatives*: the highest order that is compared with finite differences; 0 where a declared rule is tested by hand
  or only moves numbers, empty where there is no gradient.
- *Complex*: gradients of complex numbers, after PyTorch's convention, are compared with finite differences. Empty where
  they make no sense or are not there; the figures above name the gaps.
- *Reference*: what the forward is compared with, besides the declared form on plain arrays.
- *Dtypes*: what it takes (b bool, i integers, f floating point, c complex), each compared with the reference in every
  width; other dtypes are refused by name.
- *Fused*: a kernel replaces the declared form on these devices, and is compared with it.
- *Samples*: the number of argument tuples that every generated test runs.

| operation | what it gives | dtypes | derivatives | complex | reference | fused | samples |
|---|---|---|---|---|---|---|---|
"""


def text() -> str:
    """The whole page."""
    ops = coverage.load()
    figures = [
        f"| {share.what} | {share.have} of {share.of} | {share.percent:.1f} % | {', '.join(share.missing)} |"
        for share in coverage.shares(ops)
    ]
    return HEAD + "\n".join(figures) + "\n" + TABLE + "\n".join(_row(name, op) for name, op in ops.items()) + "\n"


def _row(name: str, op: Op) -> str:
    summary = " ".join((op.__doc__ or "").strip().split("\n\n")[0].split()).replace("|", "\\|")
    own = "its own" if op.reference else ""
    cells = [
        f"`{name}({', '.join(op.arguments)})`",
        summary,
        op.takes.replace("u", ""),
        str(op.order) if op.differentiable else "",
        "yes" if op.differentiable and op.complex else "",
        references.source(name) or own,
        ", ".join(sorted(op.impls)),
        str(len(check_ops.samples(op))),
    ]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str]) -> int:
    """The command line."""
    if argv == ["--write"]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
