"""`python -m benchmarks.index`: make results/README.md, and the figures in README.md, from the result files.

Nothing is measured here. A figure is looked up by its file and its row, so a table that was measured again is enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"

GPT = "GPT 4 layers, width 256, 4 heads, 128 tokens, batch 8"

# The row that stands for a file; of a file that is not here its first row.
HEADLINES = {
    "checkpoint": "GPT: pause for a save behind training, its copy included",
    "collectives": "2 ranks, all_reduce 1 MiB",
    "collectives_hosts": "1 per host, all_reduce 25 MiB",
    "comm_hooks": "GPT, SGD, bytes per step: PowerSGD rank 2",
    "cost_model": "tcp, 8 ranks, doubling 1 MiB",
    "data_loader": "40 batches of 64 images (224 x 224 x 3 bytes, random crops), 2 processes",
    "ddp_step": f"{GPT}, 2 processes, AdamW",
    "dist_overhead": "shm, 2 ranks, 1 KiB: as it is, with both",
    "gpu_step": GPT,
    "half_products": "1024 x 1024 by 1024 x 1024, bfloat16, 1 thread",
    "kubernetes": "scale 2 to 4: to the first step of four, median",
    "models_step": f"{GPT}, 1 thread",
    "node_changes": "a node joins: pause of the other, beyond a step, median",
    "op_overhead": "`linear, relu, cross entropy, backward`",
    "rendezvous_agents": "1,000 nodes, embedded store",
    "rpc_lending": "100 MiB, echo",
    "shard_mode": f"{GPT}, 4 shards",
    "simulated_agents": "join, 1,000 nodes: time",
    "soak": "of these: same bits",
    "store_front": "put of 100 bytes: the front adds",
    "train_step": f"{GPT}, 2 processes with DDP, AdamW",
    "zero": "update alone, 2 processes: stage 1",
    "zero_memory": "4 processes: stage 3",
    "zero_shards": f"{GPT}: stage 3, 2 shards",
}

# What README compares with PyTorch: its words, the file, the row.
COMPARED = [
    ("kill of a worker: to the next step", "recovery", "2 workers: kill to a survivor's next commit, median"),
    ("2 workers: start, reduce, exit", "startup", "launcher, 2 workers that form a group, all_reduce once and exit"),
    ("import", "startup", "import of the library"),
    ("`all_reduce` of 1 MiB, 2 processes", "collectives", "2 ranks, all_reduce 1 MiB"),
    ("step of a small GPT, 2 processes with DDP", "train_step", f"{GPT}, 2 processes with DDP, AdamW"),
    (
        "16 models: geometric mean",
        "models_wide",
        "16 models, their training and inference, and updates by hand: geometric mean",
    ),
]
BEGIN, END = "<!-- figures: python -m benchmarks.index -->\n", "<!-- end of figures -->\n"

HEAD = """# Results

Made by `python -m benchmarks.index` from the files beside it; a test says when it is out of date. Each file is written
by `python -m benchmarks.NAME` and carries method, spread and machine. One of its rows stands for it here; ratio:
"beside it" divided by "here". A statement about speed elsewhere names one of these files.

| results | one of its rows | here | beside it | ratio | date | machine |
|---|---|---|---|---|---|---|
"""


class ResultsError(Exception):
    """A result file lacks what the index reads; the text says which and what to do."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a file's table of figures, as it is written there."""

    what: str
    unit: str
    ours: str
    peer: str = ""
    ratio: str = ""


@dataclass(frozen=True, kw_only=True)
class Results:
    """One result file, as far as the index reads it."""

    name: str
    baseline: str
    """What the other column's figures are of; empty when there is none."""
    lines: dict[str, Line]
    machine: dict[str, str]
    gpu: str

    def line(self, what: str | None) -> Line:
        """The row called `what`; the first one for None."""
        if what is None:
            return next(iter(self.lines.values()))
        if what not in self.lines:
            raise ResultsError(f"{self.name}.md: no row {what!r}, which benchmarks/index.py names")
        return self.lines[what]


def read(path: Path) -> Results:
    """The result file at `path`. ResultsError when it has no table of figures, or no date."""
    text = path.read_text(encoding="utf-8")
    tables = list(_tables(text))
    figures = next((table for table in tables if table[0][:2] == ["what", "unit"]), None)
    if figures is None or len(figures) < 2:
        raise ResultsError(f"{path.name}: no table that begins with | what | unit |, as the harness writes it")
    machine = next(({row[0]: row[1] for row in table} for table in tables if table[0][:1] == ["machine"]), {})
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", machine.get("date", "")):
        raise ResultsError(f"{path.name}: no | date | YYYY-MM-DD | in the machine's table; add it, or measure again")
    gpu = re.search(r"^GPU: (.+?)\.?$", text, re.MULTILINE)
    lines = [_line(*row) for row in figures[1:]]
    return Results(
        name=path.stem,
        baseline=figures[0][4] if len(figures[0]) > 4 else "",
        lines={line.what: line for line in lines},
        machine=machine,
        gpu=gpu.group(1) if gpu else "",
    )


def _line(what: str, unit: str, ours: str, spread: str, peer: str = "", ratio: str = "") -> Line:
    return Line(what=what, unit=unit, ours=ours, peer=peer, ratio=ratio)


def _tables(text: str) -> Iterator[list[list[str]]]:
    """The cells of every table, its head first and without the line of dashes."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in block.splitlines()]
        yield rows[:1] + rows[2:]


def page(folder: Path = RESULTS) -> str:
    """The index of the result files in `folder`."""
    files = [read(path) for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    return HEAD + "".join(_row(results) for results in files)


def _row(results: Results) -> str:
    line = results.line(HEADLINES.get(results.name))
    peer = f"{line.peer} {line.unit} ({results.baseline})" if line.peer else ""
    machine = f"{results.machine['processor']}, {results.machine['cores']} cores"
    cells = [
        f"[{results.name}]({results.name}.md)", line.what, f"{line.ours} {line.unit}", peer, line.ratio,
        results.machine["date"], f"{results.gpu}; {machine}" if results.gpu else machine,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def comparison(folder: Path = RESULTS) -> str:
    """README's table: resilin beside PyTorch."""
    rows = ["| | resilin | PyTorch | ratio |", "|---|---|---|---|"]
    for words, name, what in COMPARED:
        line = read(folder / f"{name}.md").line(what)
        if not line.peer:
            raise ResultsError(f"{name}.md: {what!r} has no figure of PyTorch: measure with --peer-python")
        link = f"[{words}](benchmarks/results/{name}.md)"
        rows.append(f"| {link} | {line.ours} {line.unit} | {line.peer} {line.unit} | {line.ratio} |")
    return "\n".join(rows) + "\n"


def with_comparison(text: str, table: str) -> str:
    """README's `text` with `table` between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"README.md: the figures belong between {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{table}{END}{after}"


def main() -> int:
    """Write both; 1 when a result file lacks something."""
    try:
        index, readme = page(), with_comparison(README.read_text(encoding="utf-8"), comparison())
    except ResultsError as error:
        print(f"python -m benchmarks.index: error: {error}", file=sys.stderr)
        return 1
    (RESULTS / "README.md").write_text(index, encoding="utf-8")
    README.write_text(readme, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
