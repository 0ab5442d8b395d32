"""Draws memory over time as one page: nothing in it is fetched from elsewhere. Pure."""

from __future__ import annotations

import html

from resilin.profiler.formatting import format_memory

WIDTH, HEIGHT = 1200, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 20, 20, 50
_COLUMNS = 1500  # more points than that are one column of pixels: its largest total stands for it
COLORS = ("#2e7d32", "#f9a825", "#37474f", "#8e6bbf", "#d84315", "#1565c0", "#64b5f6", "#9e9e9e")
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Memory timeline</title>
<style>body{{font:14px sans-serif;margin:20px}} svg{{max-width:100%}} .k{{display:inline-block;width:12px;height:12px}}
td{{padding:2px 12px 2px 0}}</style></head><body>
<h1>Memory of the CPU over time</h1>
<p>Most in use: {most} at {when}.</p>
{svg}
<table>{legend}</table>
</body></html>
"""


def page(times_us: list[int], sizes: list[list[int]], names: list[str]) -> str:
    """Return the page. sizes[i] is [0, bytes of each of `names`] from times_us[i] on."""
    if not times_us:
        return _PAGE.format(most="0 B", when="no time: nothing was recorded", svg="", legend="")
    most = max(range(len(sizes)), key=lambda at: sum(sizes[at]))
    peak = max(1, sum(sizes[most]))
    highest = [max(row[number + 1] for row in sizes) for number in range(len(names))]
    rows = [
        f'<tr><td><span class="k" style="background:{COLORS[number]}"></span> {html.escape(name)}</td>'
        f"<td>at most {format_memory(highest[number])}</td></tr>"
        for number, name in enumerate(names)
    ]
    return _PAGE.format(
        most=format_memory(peak),
        when=f"{(times_us[most] - times_us[0]) / 1000:.3f} ms",
        svg=_svg(times_us, sizes, names, peak),
        legend="".join(rows),
    )


def columns(times_us: list[int], sizes: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Return so many of the rows of `sizes`, each with its time, as a picture can show, the last one among them."""
    start, length = times_us[0], max(1, times_us[-1] - times_us[0])
    found: dict[int, tuple[int, list[int]]] = {}
    for time, row in zip(times_us, sizes, strict=True):
        column = (time - start) * _COLUMNS // length
        if column not in found or sum(row) >= sum(found[column][1]):
            found[column] = time, row
    points = list(found.values())
    if points[-1][0] < times_us[-1]:
        points.append((times_us[-1], sizes[-1]))
    return points


def _svg(times_us: list[int], sizes: list[list[int]], names: list[str], peak: int) -> str:
    start, length = times_us[0], max(1, times_us[-1] - times_us[0])
    points = [((time - start) / length, row) for time, row in columns(times_us, sizes)]
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def y(nbytes: int) -> str:
        return f"{_TOP + high * (1 - nbytes / peak):.1f}"

    def outline(level: int) -> list[str]:
        """The steps along the sum of the first `level` categories."""
        found, height = [], None
        for place, row in points:
            x = f"{_LEFT + wide * place:.1f}"
            if height is not None:
                found.append(f"{x},{height}")
            height = y(sum(row[: level + 1]))
            found.append(f"{x},{height}")
        return found

    areas = [
        f'<polygon fill="{COLORS[number]}" points="{" ".join(outline(number + 1) + outline(number)[::-1])}">'
        f"<title>{html.escape(name)}</title></polygon>"
        for number, name in enumerate(names)
        if any(row[number + 1] for row in sizes)
    ]
    marks = []
    for part in range(5):
        nbytes, place = peak * part // 4, part / 4
        marks.append(f'<text x="{_LEFT - 8}" y="{y(nbytes)}" text-anchor="end">{format_memory(nbytes)}</text>')
        x = _LEFT + wide * place
        marks.append(f'<text x="{x:.1f}" y="{HEIGHT - 28}" text-anchor="middle">{length * place / 1000:.3f}</text>')
    marks.append(f'<text x="{_LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">milliseconds</text>')
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{wide}" height="{high}" fill="none" stroke="#999"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join([*areas, frame, *marks])}</svg>'
