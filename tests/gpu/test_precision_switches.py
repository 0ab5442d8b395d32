"""Whether products of float32 may be rounded: one value under PyTorch's names, checked and kept."""

from __future__ import annotations

import pytest

import resilin as torch
from resilin.backends import cudnn
from resilin.core import float32_matmul
from resilin.errors import UsageTypeError


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(float32_matmul, "_kept", ["highest"])
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(cudnn, name, getattr(cudnn, name))


def test_the_switch_and_the_precision_are_one():
    assert (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32) == ("highest", False)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("medium")
    assert torch.backends.cuda.matmul.allow_tf32 is float32_matmul.allows_tf32() is True
    torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_has_no_meaning_is_refused_and_nothing_changes():
    with pytest.raises(ValueError, match="expected one of highest, high, medium, got 'low'"):
        torch.set_float32_matmul_precision("low")
    with pytest.raises(UsageTypeError, match=r"backends\.cuda\.matmul\.allow_tf32 must be True or False, got 'yes'"):
        torch.backends.cuda.matmul.allow_tf32 = "yes"
    with pytest.raises(AttributeError, match="no switch 'allow_tf23'"):
        torch.backends.cuda.matmul.allow_tf23 = True
    with pytest.raises(AttributeError, match="no switch 'allow_tf23'"):
        torch.backends.cuda.matmul.allow_tf23  # noqa: B018
    with pytest.raises(UsageTypeError, match=r"backends\.cudnn\.allow_tf32 must be True or False, got None"):
        cudnn.allow_tf32 = None
    with (
        pytest.raises(UsageTypeError, match=r"backends\.cudnn\.benchmark must be True or False, got 2"),
        cudnn.flags(benchmark=2),
    ):
        raise AssertionError
    assert torch.get_float32_matmul_precision() == "highest"
    assert cudnn.allow_tf32 is True


def test_the_other_switches_are_kept():
    matmul = torch.backends.cuda.matmul
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        before = getattr(matmul, name)
        setattr(matmul, name, not before)
        assert getattr(matmul, name) is not before
        setattr(matmul, name, before)
    with cudnn.flags(enabled=True, allow_tf32=False):
        assert cudnn.allow_tf32 is False
    assert cudnn.allow_tf32 is True
