"""Events of other workers, which came with the replies to calls of this one: what the ring has of them made whole."""

from __future__ import annotations

from typing import Any

from resilin._base.trace_ring import Recording, TensorInput

_THREADS = 10_000_000  # more than an operating system numbers: a thread of worker 0 is 10,000,000 and its own number


def settle(recording: Recording) -> None:
    """Give each such span a thread that is no other worker's, and its inputs as they were recorded there."""
    for span in recording.spans:
        args = span.args
        if args and "is_remote" in args:
            node, thread = int(args["node_id"]), int(args["thread"])
            span.thread = (node + 1) * _THREADS + thread
            recording.threads[span.thread] = f"worker {node}'s thread {thread}"
            if args.get("inputs") is not None:
                args["inputs"] = [_input(one) for one in args["inputs"]]


def _input(one: Any) -> Any:
    if isinstance(one, dict):
        return TensorInput(tuple(one["shape"]), tuple(one["strides"]), one["dtype"]) if one else ...
    return [_input(each) for each in one] if isinstance(one, list) else one
