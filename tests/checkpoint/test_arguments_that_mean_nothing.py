"""Paths and states that mean nothing are refused by name, and nothing is written."""

import os

import pytest

import resilin
from resilin import checkpoint
from resilin.errors import UsageError, UsageTypeError


@pytest.mark.parametrize("path", ["", " ", "\t\n"])
@pytest.mark.parametrize(
    "call",
    [
        lambda path: checkpoint.save(path, {"w": resilin.ones(3)}),
        lambda path: checkpoint.save_async(path, {"w": resilin.ones(3)}),
        checkpoint.load,
        lambda path: checkpoint.save_safetensors({"w": resilin.ones(3)}, path),
        checkpoint.load_safetensors,
    ],
    ids=["save", "save_async", "load", "save_safetensors", "load_safetensors"],
)
def test_a_blank_path_is_refused(call, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"expected the path of a folder|expected a path that is not blank"):
        call(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("state", [[resilin.ones(1)], resilin.ones(1), None])
def test_a_state_that_is_no_dict_is_refused_by_save_safetensors(state, tmp_path):
    with pytest.raises(UsageTypeError, match=r"save_safetensors: expected a dict of tensors by their names, got"):
        checkpoint.save_safetensors(state, tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == []
