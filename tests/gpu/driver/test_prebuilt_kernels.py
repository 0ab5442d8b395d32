"""Kernels that were compiled beforehand are loaded in place of compiling them, if their source is the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from resilin.core.backends import cupy_names
from resilin.core.kernels import check
from resilin.core.kernels.cuda import prebuilt, sources


@pytest.fixture(autouse=True)
def unused():
    yield
    prebuilt.use(None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    try:
        check.Nvrtc()
    except check.CompilerMissing as error:
        pytest.skip(str(error))
    generated = next(name for name in check.generated() if name.startswith("elementwise"))
    kernels = len(sources.KERNELS["row_sums"]) + len(check.generated()[generated])
    assert check.prepare(folder, "sm_90", ["row_sums", generated]) == kernels
    return folder


@pytest.fixture
def folder(prepared):
    prebuilt.use(prepared)
    return prepared


def test_what_was_prepared_is_found_by_source_kernel_and_architecture(folder):
    path, symbol = prebuilt.find("row_sums", "row_sums<float, float>", "sm_90")
    binary = Path(path).read_bytes()
    assert binary[:4] == b"\x7fELF"
    assert "row_sums" in symbol
    assert symbol.encode() in binary
    made = next(kernels for name, kernels in check.generated().items() if name.startswith("elementwise"))
    assert all(prebuilt.find(one, one, "sm_90") for one in made)
    assert prebuilt.find("row_sums", "row_sums<float, float>", "sm_80") is None
    assert prebuilt.find("row_sums", "row_sums<short, int>", "sm_90") is None
    assert prebuilt.find("rows", "take_rows<unsigned>", "sm_90") is None


def test_a_source_that_changed_is_compiled_anew(folder, monkeypatch):
    text = sources.text
    monkeypatch.setattr(sources, "text", lambda name: text(name) + "\n")
    assert prebuilt.find("row_sums", "row_sums<float, float>", "sm_90") is None


def test_a_launch_loads_what_was_prepared(folder):
    loaded = []

    class RawModule:
        def __init__(self, path):
            loaded.append(path)

        def get_function(self, symbol):
            return symbol

    device = SimpleNamespace(compute_capability="90")
    cupy = SimpleNamespace(RawModule=RawModule, cuda=SimpleNamespace(Device=lambda: device))
    xp = SimpleNamespace(module=cupy, driver=None)
    path, symbol = prebuilt.find("row_sums", "row_sums<double, double>", "sm_90")
    assert cupy_names._function(xp, "row_sums", "row_sums<double, double>") == symbol
    assert loaded == [path]
