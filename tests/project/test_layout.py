"""Folders stay small and say what they hold; names of folders, of public classes and of test files mean one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("resilin", "tests", "benchmarks", "scripts", "examples")
SUFFIXES = (".py", ".cpp", ".hpp", ".cu")
MOST_FILES = 40
MOST_DEFINITIONS = 2
FEW_MODULES = 3

# Folders that tools take for what is built or for the code of others, and pass by: ruff's default `exclude`, the paths
# of github-linguist's lib/linguist/vendor.yml, and what the templates of github/gitignore leave out for Python (build,
# lib), Visual Studio (bin, obj), Maven and Cargo (target), JetBrains' IDEs (out).
PASSED_BY = frozenset(
    {
        *("_build", "buck-out", "dist", "node_modules", "venv", "__pypackages__"),  # ruff
        *("cache", "bower_components", "third_party", "thirdparty", "3rd_party", "3rdparty"),  # linguist
        *("vendor", "vendors", "extern", "external", "env"),  # linguist
        *("build", "lib", "bin", "obj", "target", "out"),  # gitignore
    }
)


def folders(root: Path) -> Iterator[Path]:
    """The folders of code below `root`."""
    for name in CODE:
        if (root / name).is_dir():
            yield root / name
            yield from sorted(
                path for path in (root / name).rglob("*") if path.is_dir() and "__pycache__" not in path.parts
            )


def modules(folder: Path, suffixes: Iterable[str] = (".py",)) -> list[Path]:
    """The files of code directly in `folder`."""
    return [path for path in folder.iterdir() if path.suffix in suffixes and path.name != "__init__.py"]


def crowded(root: Path) -> list[str]:
    """Folders with too many files."""
    counts = ((folder, len(modules(folder, SUFFIXES))) for folder in folders(root))
    return [
        f"{folder.relative_to(root)}: {count} files, expected at most {MOST_FILES}"
        for folder, count in counts
        if count > MOST_FILES
    ]


def passed_by(root: Path) -> list[str]:
    """Folders that tools would leave out."""
    return [str(folder.relative_to(root)) for folder in folders(root) if folder.name.lower() in PASSED_BY]


def often_defined(root: Path) -> set[str]:
    """Public classes that too many files define."""
    files: defaultdict[str, set[Path]] = defaultdict(set)
    for path in (root / "resilin").rglob("*.py"):
        for name in re.findall(r"^ *class ([^\W_]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            files[name].add(path)
    candidates = {name: found for name, found in files.items() if len(found) > MOST_DEFINITIONS}
    return {name for name, found in candidates.items() if sum(defines(path, name) for path in found) > MOST_DEFINITIONS}


def defines(path: Path, name: str) -> bool:
    """Whether a file has a class of that name, not only lines in a text that look like it."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in nodes)


def unexplained(root: Path) -> list[str]:
    """Folders of several modules without a README.md and without a sentence in `__init__.py`."""
    return [
        str(folder.relative_to(root))
        for folder in folders(root)
        if folder.relative_to(root).parts[0] == "resilin"
        and len(modules(folder)) > FEW_MODULES
        and not (says_something(folder / "README.md") or says_something(folder / "__init__.py"))
    ]


def says_something(path: Path) -> bool:
    """Whether a page, or a module's docstring, has at least one sentence."""
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8")
    told = text if path.suffix == ".md" else ast.get_docstring(ast.parse(text)) or ""
    return len(told.split()) >= 4 and bool(re.search(r"\w`?[.:](\s|$)", told))


def shared_names(root: Path) -> list[str]:
    """Names of Python files that occur more than once in the tree of tests, which imports them by this name."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("*.py")):
        if path.name not in ("conftest.py", "__init__.py"):
            places[path.name].append(str(path.relative_to(root)))
    return [", ".join(paths) for paths in places.values() if len(paths) > 1]


def test_no_folder_of_code_has_more_files_than_one_looks_through():
    assert crowded(ROOT) == [], "sort them into folders by what they are about"


def test_no_folder_bears_a_name_that_tools_pass_by():
    assert passed_by(ROOT) == [], "tools take it for build output or for the code of others; give it another name"


def test_no_public_class_name_is_defined_in_more_than_two_files():
    assert often_defined(ROOT) == set(), "two files define it already: name the new class by what sets it apart"


def test_every_folder_of_several_modules_says_what_is_in_it():
    assert unexplained(ROOT) == [], "write a README.md, or a docstring of one sentence in its __init__.py"


def test_names_of_test_files_are_unique():
    assert shared_names(ROOT) == [], "pytest imports test files by their name alone: give one of them another"


# -- each check can fail


@pytest.fixture
def tree(tmp_path):
    """tree({"resilin/a/b.py": text, ...}) -> the root of a tree with these files."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_a_folder_with_one_file_too_many_is_named(tree):
    kinds = [f"resilin/a/native/k{number}{suffix}" for number in range(10) for suffix in SUFFIXES]
    root = tree(dict.fromkeys([*kinds, "resilin/a/native/__init__.py", "resilin/a/native/notes.md"], ""))
    assert crowded(root) == []
    tree({"resilin/a/native/more.hpp": ""})
    assert crowded(root) == ["resilin/a/native: 41 files, expected at most 40"]


@pytest.mark.parametrize("name", ["dist", "Build", "third_party", "lib", "node_modules"])
def test_a_folder_that_tools_pass_by_is_named(tree, name):
    root = tree({f"resilin/{name}/a.py": "", "tests/libs/a.py": "", "docs/build/a.py": ""})
    assert passed_by(root) == [f"resilin/{name}"]


def test_a_class_name_of_three_files_is_found_unless_it_is_private(tree):
    source = "class Meeting:\n    class Guest: ...\nclass _Own: ...\n"
    root = tree({"resilin/a.py": source, "resilin/b/c.py": source, "tests/d.py": source})
    assert often_defined(root) == set()
    tree({"resilin/b/e.py": source})
    assert often_defined(root) == {"Meeting", "Guest"}


@pytest.mark.parametrize("said", ["", '"""Things"""\n', "# Folds and cuts paper.\n"])
def test_a_folder_without_a_sentence_is_named(tree, said):
    files = {f"resilin/a/m{number}.py": '"""Says what this file is about."""\n' for number in range(FEW_MODULES)}
    root = tree({**files, "resilin/a/__init__.py": said})
    assert unexplained(root) == []
    tree({"resilin/a/more.py": ""})
    assert unexplained(root) == ["resilin/a"]
    tree({"resilin/a/README.md": "# a: fold and cut paper, one file a figure.\n"})
    assert unexplained(root) == []


def test_a_docstring_of_one_sentence_explains_a_folder(tree):
    files = dict.fromkeys((f"resilin/a/m{number}.py" for number in range(9)), "")
    assert unexplained(tree({**files, "resilin/a/__init__.py": '"""Fold and cut paper."""\n'})) == []


def test_test_files_of_one_name_are_named_with_their_places(tree):
    root = tree(dict.fromkeys(["tests/a/test_x.py", "tests/b/conftest.py", "tests/conftest.py"], ""))
    assert shared_names(root) == []
    tree({"tests/b/test_x.py": ""})
    assert shared_names(root) == ["tests/a/test_x.py, tests/b/test_x.py"]
