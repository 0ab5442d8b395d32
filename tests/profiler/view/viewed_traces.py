"""Traces that the page is tried with: of a real job of two ranks, of a device by hand, and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path

from resilin.testing.ranks import start_ranks

PID = 99
LONG = "n" * 10_000
HOSTILE = (
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "</script><script>window.harmed = 1</script>",
    "\"'><svg onload=window.harmed=1>",
    "<!--<script>",
    "javascript:window.harmed=1//(1): f",
    "../../../etc/passwd(1): root",
    "/etc/passwd(1): root",
    "line\u2028separator\u0000and\x1b[31mcodes\ud800",
    LONG,
)
JOB = """
import resilin as torch
from resilin import dist
from resilin.profiler import profile, record_function, schedule, tensorboard_trace_handler
from resilin.testing.ranks import join_from_environment
group = join_from_environment(timeout_s=60)
rank = dist.get_rank()

def train(prof):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        with record_function("load"):
            x = torch.randn(32, 64)
            for _ in range(40 * rank):
                x = x + 0
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if rank == 0:
            dist.send(loss.detach(), 1)
        else:
            dist.recv(loss.detach(), 0)
        optimizer.step()
        optimizer.zero_grad()
        prof.step()

options = dict.fromkeys(("record_shapes", "profile_memory", "with_stack"), True)
plan = schedule(wait=1, warmup=1, active=4)
with profile(schedule=plan, on_trace_ready=tensorboard_trace_handler("traces"), **options) as prof:
    train(prof)
dist.barrier()
"""


def two_ranks(folder: Path) -> Path:
    """The folder with the traces of two real ranks, and `train.py`, which they ran."""
    (folder / "train.py").write_text(JOB)
    runner = f"import os, runpy; os.chdir({str(folder)!r}); runpy.run_path('train.py', run_name='__main__')"
    ended = [rank.finish() for rank in start_ranks(2, runner, str(folder))]
    assert [code for code, _, _ in ended] == [0, 0], ended
    return folder / "traces"


def span(name, start, end, category="cpu_op", thread=1, **args):
    """One event of a trace file; times in microseconds."""
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": thread, **times, "args": args}


def write(path: Path, events, rank: int = 0, **head) -> Path:
    """A trace file of these events."""
    world = {"rank": rank, "world_size": rank + 1}
    body = {"distributedInfo": world, "host_name": "h", "traceEvents": list(events), **head}
    path.write_text(json.dumps(body))
    return path


def hostile(path: Path) -> Path:
    """A trace in which every text that a file can choose attacks the page."""
    events = []
    for number, name in enumerate(HOSTILE):
        args = {"Input Dims": [name], "Concrete Inputs": [name], name: name}
        events.append(span(name, number * 100, number * 100 + 90, "python_function", thread=name))
        events.append(span(name, number * 100 + 10, number * 100 + 80, thread=name, **args))
        more = {"Addr": number, "Bytes": 100, "Device Type": 0, "Device Id": -1}
        events.append({"ph": "i", "name": "[memory]", "pid": PID, "tid": name, "ts": number * 100 + 20, "args": more})
        events.append({"ph": "M", "name": "thread_name", "pid": PID, "tid": name, "args": {"name": name}})
        events.append(span(name, number, number + 1, "kernel", "s", device=name, grid=name, block=[name], bytes=5))
    about = {"Collective name": HOSTILE[0], "Process Group Name": HOSTILE[1], "Process Group Ranks": [0, 1], "Seq": 1}
    events.append(span(HOSTILE[0], 2000, 3000, "user_annotation", **about, Rank=0, dtype=HOSTILE[2]))
    events.append(span(f"ProfilerStep#{HOSTILE[0]}", 0, 3000, "user_annotation"))
    return write(path, events, host_name=HOSTILE[0])
