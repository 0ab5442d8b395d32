"""The changelog is for users: short, and of lines that can be read."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES, WIDTH = 60, 165


def versions(text: str) -> list[list[str]]:
    """The lines of each version's part, the newest first."""
    parts: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("## "):
            parts.append([])
        if parts:
            parts[-1].append(line)
    return parts


def mistakes(text: str) -> list[str]:
    """What is too long."""
    found = [f"{part[0]}: {len(part)} lines" for part in versions(text) if len(part) > LINES]
    return found + [f"line of {len(line)} characters: {line[:60]}" for line in text.splitlines() if len(line) > WIDTH]


def test_a_version_has_at_most_60_lines_that_can_be_read() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert versions(text)
    assert mistakes(text) == [], "say what there is, for users; what was found and mended on the way is in the history"


@pytest.mark.parametrize("text", ["## [1]\n" + "- a\n" * 60, "## [1]\n- " + "a" * 164])
def test_what_is_too_long_is_found(text: str) -> None:
    assert len(mistakes(text)) == 1
