"""The documentation is true as far as a machine can tell."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from resilin import errors
from resilin.elastic.spawn import environment
from resilin.elastic.spawn.environment import WorkerPlace
from resilin.errors import ResilinError
from resilin.launcher import arguments, exit_codes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks", ROOT / "resilin")
    for page in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
RUNNABLE = re.compile(r"^```python runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, number, code) for page in PAGES for number, code in enumerate(RUNNABLE.findall(page.read_text()))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names under which the headings of `page` can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_file_of_the_repository_resolves(page: Path) -> None:
    for link in LINK.findall(without_blocks(page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}: no such heading"


def test_readme_has_at_most_600_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_every_page_of_docs_can_be_reached_from_the_index() -> None:
    waiting, seen = [ROOT / "docs" / "README.md"], set()
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
        waiting += [(page.parent / link).resolve() for link in links if link]
    assert set((ROOT / "docs").rglob("*.md")) <= seen


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{name(p)}-{n}" for p, n, _ in BLOCKS])
def test_python_blocks_marked_as_runnable_run(
    page: Path, number: int, code: str, run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    done = run_python("-W", "error", str(script), cwd=tmp_path)
    assert done.returncode == 0, f"block {number} of {name(page)}:\n{code}\n{done.stderr}"


def test_there_are_runnable_blocks() -> None:
    assert len(BLOCKS) >= 3


def test_readme_program_runs_under_the_launcher_as_it_stands(elastic_run: Callable[..., str], tmp_path: Path) -> None:
    [code] = RUNNABLE.findall((ROOT / "README.md").read_text())
    script = tmp_path / "train.py"
    script.write_text(code)
    said = re.findall(r"[0-9.]+% right", elastic_run(str(script)))  # two workers may write into one another's lines
    assert len(said) == 2
    assert len(set(said)) == 1  # the same from both workers
    assert float(said[0].partition("%")[0]) > 95


def test_errors_page_names_every_exception() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ResilinError)]
    assert len(classes) > 20
    assert [c.__name__ for c in classes if f"`{c.__name__}`" not in page] == []


def test_launcher_reference_names_every_flag_variable_and_exit_code() -> None:
    page = (ROOT / "docs" / "reference" / "elastic-run.md").read_text()
    flags = {o for action in arguments.parser()._actions for o in action.option_strings if "_" not in o}
    place = WorkerPlace(
        rank=0, local_rank=0, world_size=2, local_world_size=2, node_rank=0, node_count=1, generation=1,
        restarts_used=0, master_addr="127.0.0.1", master_port=1,
    )  # fmt: skip
    variables = environment.variables(place, environment.JobEnvironment(name="j", secret="s"), {}, "error.json")
    named = set(re.findall(r"`([^`]+)`", without_blocks(page)))
    assert (flags - {"-h", "--help"}) | set(variables) <= named
    codes = re.findall(r"^  (\S+) ", exit_codes.HELP, re.MULTILINE)
    assert codes[-1] == "128+N"
    assert [code for code in codes if f"\n| {code} |" not in page] == []


def test_parity_page_has_every_row() -> None:
    ids = re.findall(r"^\| ([DET]\d+) \|", (ROOT / "docs" / "parity.md").read_text(), re.MULTILINE)
    expected = [f"{letter}{n}" for letter, count in (("D", 18), ("E", 18), ("T", 7)) for n in range(1, count + 1)]
    assert ids == expected


def test_parity_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", (ROOT / "docs" / "parity.md").read_text()))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_nothing_in_the_documentation_names_a_path_of_one_machine() -> None:
    for page in PAGES:
        found = re.findall(r"(?<![\w.$~])/(?:work|home|root|tmp)/\S*", page.read_text())
        assert not found, f"{name(page)}: {found}"
