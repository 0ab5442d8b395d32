"""`resilin checkpoint diff`: names, shapes, dtypes, and how many elements differ by how much."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING

from resilin.launcher import exit_codes, output

if TYPE_CHECKING:
    from resilin.checkpoint.tools.compare import Difference

_SHOWN = 5
WHAT = "a checkpoint (of a folder the newest), safetensors weights (file, index or folder), or a .pt file of torch.save"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `diff`."""
    parser.add_argument("a", metavar="A", help=WHAT)
    parser.add_argument("b", metavar="B", help="what it is compared with")
    parser.add_argument("--a-step", type=int, metavar="N", help="the checkpoint of this step in A")
    parser.add_argument("--b-step", type=int, metavar="N", help="the checkpoint of this step in B")
    parser.add_argument("--key", metavar="KEY", help="only what lies below this name in both, as in 'model'")
    parser.add_argument("--a-key", metavar="KEY", help="in A, where it has another name there")
    parser.add_argument("--b-key", metavar="KEY", help="in B, where it has another name there")
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(args: argparse.Namespace) -> int:
    """Print a line for each difference. 0 when there is none, 1 otherwise."""
    from resilin.checkpoint.tools import compare, states  # loads numpy, as all that reads checkpoints does

    a, b = states.open_state(args.a, args.a_step), states.open_state(args.b, args.b_step)
    a, b = (
        state.part(key) if key else state for state, key in ((a, args.a_key or args.key), (b, args.b_key or args.key))
    )
    found = compare.compare(a, b)
    if args.json:
        output.show_json([_as_json(one) for one in found], indent=2)
    else:
        said = f"{len(found)} differences" if found else _alike(compare.uncompared(a, b))
        output.show(f"A: {a.path}", f"B: {b.path}", *map(_line, found), said)
    return exit_codes.FAILED if found else exit_codes.OK


def _alike(uncompared: list[str]) -> str:
    if not uncompared:
        return "the same names, values and bits"
    shown = ", ".join(uncompared[:_SHOWN]) + (", ..." if len(uncompared) > _SHOWN else "")
    values = f"{len(uncompared)} plain value{'s' * (len(uncompared) > 1)}"
    return f"the same tensors, by names and bits; safetensors have no others, so not compared: {values} ({shown})"


def _line(one: Difference) -> str:
    if one.what.startswith("only"):
        return f"  {one.name}: {one.what}: {one.a or one.b}"
    if one.what == "elements":
        return f"  {one.name}: {one.a}: {one.differing} elements differ, by {one.largest:.6g} at most"
    return f"  {one.name}: {one.what}: {one.a} in A, {one.b} in B"


def _as_json(one: Difference) -> dict[str, object]:
    """JSON knows no NaN and no infinity: they become text."""
    largest = one.largest if math.isfinite(one.largest) else str(one.largest)
    return dataclasses.asdict(one) | {"largest": largest}
