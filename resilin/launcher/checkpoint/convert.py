"""`resilin checkpoint convert`: a checkpoint, safetensors weights or a file of torch.save as another of these."""

from __future__ import annotations

import argparse
import contextlib
import decimal

from resilin.errors import UsageError
from resilin.launcher import exit_codes, output
from resilin.launcher.checkpoint.diff import WHAT
from resilin.launcher.checkpoint.ls import size

_SHOWN = 5  # names of what is left out
_MOST = 1 << 63  # bytes; more no file has


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `convert`."""
    parser.add_argument("source", help=WHAT)
    parser.add_argument("target", help="what is written; a name that ends in .safetensors is one such file")
    parser.add_argument(
        "--to",
        choices=("file", "hub", "checkpoint"),
        help="a safetensors file; a folder of them with an index, as model hubs have it; a checkpoint "
        "(default: file for *.safetensors, else checkpoint)",
    )
    parser.add_argument("--key", metavar="KEY", help="only what lies below this name, as in 'model'; names begin there")
    parser.add_argument("--step", type=int, metavar="N", help="the checkpoint of this step in the source")
    parser.add_argument(
        "--max-shard-bytes",
        type=_bytes,
        default=5_000_000_000,
        metavar="N",
        help="of each file of --to hub (default: 5e9)",
    )


def _bytes(text: str) -> int:
    """A number of bytes, also as 5e9."""
    with contextlib.suppress(decimal.InvalidOperation):
        number = decimal.Decimal(text)
        if number.is_finite() and 1 <= number <= _MOST and number == int(number):
            return int(number)
    raise argparse.ArgumentTypeError(f"expected a whole number of bytes, as 5e9, got {text!r}")


def run(args: argparse.Namespace) -> int:
    """Write the target, and say what was written and what was left out. UsageError when they do not fit."""
    from resilin.checkpoint.tools import convert, states  # loads numpy, as all that reads checkpoints does

    is_file = args.target.endswith(".safetensors")
    to = args.to or ("file" if is_file else "checkpoint")
    if (to == "file") is not is_file:
        raise UsageError(f"--to {to}: a file's name ends in .safetensors, and nothing else's does; got {args.target}")
    if args.to is None and args.target.endswith(states.TORCH):
        raise UsageError(
            f"{args.target}: files of torch.save are not written; PyTorch reads .safetensors (--to checkpoint writes a "
            "folder of that name)"
        )
    state = states.open_state(args.source, args.step)
    state = state.part(args.key) if args.key else state
    if to == "checkpoint":
        done = convert.to_checkpoint(state, args.target, state.step)
    else:
        done = convert.to_weights(state, args.target, args.max_shard_bytes)
    output.show(f"{done.path}: {done.tensors} tensors, {size(done.nbytes)}")
    if done.left_out:
        more = f", and {len(done.left_out) - _SHOWN} more" if len(done.left_out) > _SHOWN else ""
        output.show(f"  left out, being no tensors: {', '.join(done.left_out[:_SHOWN])}{more}")
    return exit_codes.OK
