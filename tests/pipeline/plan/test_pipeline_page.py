"""What docs/pipeline.md shows of schedules is what its commands print."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from resilin.launcher.main import main
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.simulate import simulate
from resilin.pipeline.plan.svg import svg
from resilin.pipeline.plan.validate import validate

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "pipeline.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "$ resilin pipeline" in block]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_commands_print_what_the_page_shows(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = []
    for line in block.splitlines():
        if line.startswith("$ resilin "):
            main(shlex.split(line)[2:])
            shown += [line, *capsys.readouterr().out.splitlines()]
        elif line.startswith("$ "):
            subprocess.run(["sh", "-c", line[2:]], check=True, timeout=60)
            shown.append(line)
    assert shown == block.splitlines()


def test_all_schedules_are_drawn():
    assert len(BLOCKS) == 3
    assert BLOCKS[0].count("$ resilin pipeline draw") == 7


def test_the_table_of_bubbles_is_the_simulations():
    table = re.findall(r"^\| `(\w+)` \| (\d+\.\d(?: \| [\d.-]+)+) \|$", PAGE, re.MULTILINE)
    assert len(table) == 7
    for name, cells in table:
        *bubbles, held = cells.split(" | ")
        for cell, (ranks, microbatches) in zip(bubbles, [(p, m) for p in (2, 4) for m in (4, 8, 16)], strict=True):
            if (name, ranks, microbatches) == ("DualPipeV", 4, 4):
                assert cell == "-"  # it takes 8 or more
            else:
                assert cell == f"{100 * simulate(generate(name, ranks, microbatches)).bubble:.1f}"
        assert float(held) == max(validate(generate(name, 4, 16)).microbatches)


def test_the_example_prints_what_the_page_shows():
    code, _, output = re.search(
        r"```python\n(from resilin.pipeline.plan.*?)```\n(\n)```text\n(.*?)```", PAGE, re.DOTALL
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


@pytest.mark.parametrize(("name", "file"), [("1F1B", "pipeline-1f1b.svg"), ("ZBVZeroBubble", "pipeline-zbv.svg")])
def test_the_pictures_are_the_commands(name, file):
    assert (DOCS / "images" / file).read_text(encoding="utf-8") == svg(simulate(generate(name, 4, 8)))
