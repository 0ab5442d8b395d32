"""Draws docs/images/demo.svg: runs the demo and makes a picture of what it printed.

python scripts/draw_demo.py             run it (half a minute) and write the file
python scripts/draw_demo.py --from LOG  draw what `make demo > LOG` printed
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
TIMEOUT_S = 300

SIZE, LINE, MARGIN = 12, 17, 16  # pixels
CHARACTER = 0.6 * SIZE  # how wide one is in most fonts of one width
STYLE = (
    "text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #c9d1d9; "
    "white-space: pre } .dim { fill: #8b949e } .bad { fill: #ff7b72; font-weight: bold } "
    ".good { fill: #7ee787; font-weight: bold }"
)
PROMPT = "$ make demo"
PROGRESS = re.compile(r"^ *[\d.]+ s  \[[# ]+\] ")
LEFT_OUT = "        ⋮"
KINDS = [  # the first that is found in a line gives its colour
    ("bad", re.compile(r"KILL:|FAILED:|DIFFERENT")),
    ("good", re.compile(r"RECOVERED:|every sample once|equal$")),
    ("dim", re.compile(r"^\$|⋮|\[[# ]+\]|generation \d+: rank")),
]


def run() -> list[str]:
    """The lines of one run of the demo. CalledProcessError when it did not show what it promises."""
    command = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout.splitlines()


def shortened(lines: Iterable[str]) -> Iterator[str]:
    """The lines below a prompt; of progress lines that follow one another the last stays."""
    yield PROMPT
    waiting: list[str] = []
    for line in lines:
        if PROGRESS.match(line):
            waiting.append(line)
            continue
        yield from ([LEFT_OUT] if len(waiting) > 1 else []) + waiting[-1:]
        waiting = []
        yield line


def draw(lines: Iterable[str]) -> str:
    """The picture of `lines`, as SVG."""
    lines = list(lines)
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = 2 * MARGIN + LINE * len(lines)
    rows = [_row(line, MARGIN + LINE * number + SIZE) for number, line in enumerate(lines)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img">',
            "<title>One of two workers is killed; the weights are those of an undisturbed run</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


def _row(line: str, y: int) -> str:
    kind = next((f' class="{name}"' for name, pattern in KINDS if pattern.search(line)), "")
    # a length, so that a line ends inside of the picture in any font
    place = f'x="{MARGIN}" y="{y}" textLength="{CHARACTER * len(line):.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {place}{kind} xml:space="preserve">{escape(line, quote=False)}</text>'


def main() -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from", dest="log", type=Path, help="what a run of the demo printed; default: run it")
    log = parser.parse_args().log
    lines = run() if log is None else log.read_text(encoding="utf-8").splitlines()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(shortened(lines)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
