"""The public face is frozen: names, their documentation, and what an import costs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "public_names.py"
FROZEN = Path(__file__).parent / "public_names.txt"
sys.path.insert(0, str(SCRIPT.parent))
import public_names  # noqa: E402 - the script that writes the list also says what belongs in it

sys.path.remove(str(SCRIPT.parent))
PACKAGES = public_names.packages()


def test_the_public_names_are_the_frozen_ones():
    frozen = FROZEN.read_text().splitlines()
    now = public_names.lines()
    added, gone = sorted(set(now) - set(frozen)), sorted(set(frozen) - set(now))
    assert now == frozen, f"added {added}, gone {gone}; if that is meant: python {SCRIPT.relative_to(ROOT)} --write"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_documented(package):
    module = importlib.import_module(package)
    assert inspect.getdoc(module), f"{package} has no docstring"
    bare = []
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        documented = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
        home = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        pythons = str(home).startswith("multiprocessing.")
        if documented and not pythons and not (getattr(value, "__doc__", None) or "").strip():
            bare.append(name)
    assert bare == [], f"{package}: public names without a docstring"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
    )
    return set(done.stdout.split())


def test_importing_resilin_loads_neither_grpc_nor_asyncio():
    assert loaded_by("import resilin").isdisjoint({"grpc", "google.protobuf", "asyncio"})


def test_importing_the_store_loads_neither_grpc_nor_numpy():
    loaded = loaded_by("import resilin.store; resilin.store.connect('memory://').close()")
    assert loaded.isdisjoint({"grpc", "google.protobuf", "numpy", "asyncio", "resilin.core"})


def test_the_launcher_loads_neither_grpc_nor_numpy():
    assert loaded_by("import resilin.launcher.elastic_run").isdisjoint({"grpc", "numpy", "resilin.core"})


def test_every_dependency_says_why_it_is_one():
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    for requirement in wanted:
        pattern = rf'^\s*"{re.escape(requirement)}",?\s*#\s*\S+'
        assert re.search(pattern, text, re.MULTILINE), f"pyproject.toml: {requirement} has no comment that says why"


def test_every_package_has_a_readme():
    missing = []
    for package in PACKAGES:
        folder = ROOT / package.replace(".", "/")
        is_namespace = len(list(folder.rglob("*.py"))) <= 2  # public names over another package
        if package.count(".") == 1 and not is_namespace and not (folder / "README.md").exists():
            missing.append(package)
    assert missing == [], "each package has a short README: purpose, one picture, where to start"
