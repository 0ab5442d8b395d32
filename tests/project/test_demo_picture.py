"""The demo's picture is what `scripts/draw_demo.py` draws of a run, and shows what the demo promises."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_demo", ROOT / "scripts" / "draw_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_picture_is_what_the_script_draws_of_its_lines(script: ModuleType) -> None:
    picture = script.PICTURE.read_text(encoding="utf-8")
    lines = lines_of(picture)
    assert script.draw(lines) == picture, "python scripts/draw_demo.py"
    assert lines[0] == script.PROMPT
    assert not re.search(r"(?<![\w.])/\w+/", "\n".join(lines))  # no path of a machine


def test_the_picture_shows_a_run_that_kept_the_promise(script: ModuleType) -> None:
    text = "\n".join(lines_of(script.PICTURE.read_text(encoding="utf-8")))
    assert "KILL: SIGKILL to rank" in text
    assert re.search(r"RECOVERED: the next step was committed \d+ ms after the kill", text)
    assert "every sample once" in text
    first, second = re.findall(r"[0-9a-f]{64}", text)
    assert first == second
    assert text.endswith("equal")


def test_of_progress_lines_that_follow_one_another_the_last_is_drawn(script: ModuleType) -> None:
    progress = [f"  {second}.0 s  [##   ] epoch {second}" for second in range(3)]
    lines = ["  0.0 s  begin", *progress, "  3.0 s  KILL: a <rank> & more", progress[0], "  4.0 s  end"]
    shown = list(script.shortened(lines))
    assert shown == [script.PROMPT, lines[0], script.LEFT_OUT, progress[2], lines[4], progress[0], lines[6]]
    assert lines_of(script.draw(shown)) == shown
