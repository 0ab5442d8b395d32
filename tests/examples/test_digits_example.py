"""The first example, small: it runs with any number of workers, and the weights do not tell how many there were."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from resilin import optim
from resilin.optim import AdamW

TRAIN = "examples/01-digits/train.py"
SMALL = ("--epochs", "2", "--log-every", "10")


@pytest.fixture
def digits(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", root / "examples" / "01-digits" / "digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(output: str) -> str:
    match = re.search(r"weights sha256 ([0-9a-f]{64})", output)
    assert match, output
    return match[1]


def test_loader_splits_the_1797_images_into_disjoint_parts(digits: ModuleType) -> None:
    (images, labels), (held_out, held_out_labels) = digits.load(train=True), digits.load(train=False)
    assert images.shape == (1437, 1, 8, 8)
    assert held_out.shape == (360, 1, 8, 8)
    assert images.dtype == np.float32
    assert float(images.min()) == 0.0
    assert float(images.max()) == 1.0
    assert np.bincount(labels).shape == (10,)
    assert set(held_out_labels) == set(range(10))


def test_data_file_is_the_one_whose_source_and_licence_are_documented(root: Path) -> None:
    page = (root / "examples" / "data" / "README.md").read_text()
    file = (root / "examples" / "data" / "digits.csv.gz").read_bytes()
    assert hashlib.sha256(file).hexdigest() in page
    assert f"{len(file):,} bytes" in page
    assert "CC BY 4.0" in page


@pytest.mark.multiproc
def test_two_workers_end_with_the_weights_of_one_process_without_a_launcher(
    run_python: Callable[..., subprocess.CompletedProcess[str]], elastic_run: Callable[..., str]
) -> None:
    alone = run_python(TRAIN, *SMALL)
    assert alone.returncode == 0, alone.stderr
    assert alone.stderr == ""
    assert weights(elastic_run(TRAIN, *SMALL)) == weights(alone.stdout)


def test_the_learning_rate_ends_at_0_so_that_no_last_step_decides_the_accuracy(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    monkeypatch.setattr(optim, "AdamW", lambda *args, **options: made.append(AdamW(*args, **options)) or made[-1])
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1", "--batch-size", "512"])
    monkeypatch.syspath_prepend(str(root / "examples" / "01-digits"))
    runpy.run_path(str(root / TRAIN), run_name="__main__")
    assert "test accuracy" in capsys.readouterr().out
    assert made[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_another_number_of_epochs_gives_other_weights(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    one, two = (run_python(TRAIN, "--epochs", epochs).stdout for epochs in ("1", "2"))
    assert weights(one) != weights(two)
