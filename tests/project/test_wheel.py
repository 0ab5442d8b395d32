"""What `make wheel` refuses: `scripts/smoke_wheel.py` looks into the file before it installs it."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = [
    "resilin/__init__.py",
    "resilin/core/_native.cpython-311-x86_64-linux-gnu.so",
    "resilin/core/kernels/cuda/layer_norm.cu",
    "resilin/testing/__init__.py",
    "resilin/profiler/view/page/page.html",
    "resilin/as_torch/_modules/torch.egg-info",
    "resilin-0.1.0.dist-info/licenses/LICENSE",
]
TAG = "cp311-cp311-manylinux_2_35_x86_64"


@pytest.fixture
def smoke(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("smoke_wheel", ROOT / "scripts" / "smoke_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, names: list[str], tag: str = TAG, size: int = 6_700_000) -> Path:
    path = folder / f"resilin-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
        archive.writestr("resilin/filling.py", bytes(size))
    return path


def test_a_wheel_as_it_should_be_has_no_problems(smoke: Any, tmp_path: Path) -> None:
    assert smoke.problems(wheel(tmp_path, GOOD)) == []
    assert smoke.native_modules(GOOD) == ["resilin.core._native"]


@pytest.mark.parametrize(
    "name",
    [
        "resilin/core/native/matmul/gemm.cpp", "resilin/distributed/native/post.hpp", "tests/core/test_a.py",
        "build/x/a.py",
        "resilin/core/README.md", "resilin/__pycache__/a.pyc", "resilin/.ruff_cache/a", "CMakeLists.txt",
    ],
)  # fmt: skip
def test_what_does_not_belong_into_it_is_named(smoke: Any, tmp_path: Path, name: str) -> None:
    assert smoke.problems(wheel(tmp_path, [*GOOD, name])) == [f"{name} does not belong into it"]


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("resilin/core/kernels/cuda/layer_norm.cu", "resilin/core/kernels/cuda/ is missing"),
        ("resilin-0.1.0.dist-info/licenses/LICENSE", "the license is missing"),
        ("resilin/core/_native.cpython-311-x86_64-linux-gnu.so", "no native module is in it"),
    ],
)
def test_what_is_missing_is_named(smoke: Any, tmp_path: Path, gone: str, says: str) -> None:
    assert smoke.problems(wheel(tmp_path, [name for name in GOOD if name != gone])) == [says]


def test_a_wheel_without_a_tag_or_of_another_size_is_refused(smoke: Any, tmp_path: Path) -> None:
    assert "no manylinux tag" in smoke.problems(wheel(tmp_path, GOOD, "cp311-cp311-linux_x86_64"))[0]
    assert "README says 7.6 MB" in smoke.problems(wheel(tmp_path, GOOD, size=10_000_000))[0]
