"""Modules that are saved whole come back where that is allowed, and nothing of them runs where it is not."""

from __future__ import annotations

import argparse
import io
import pickle
from typing import Any

import pytest

import resilin
from resilin import nn
from resilin.errors import UsageError

RAN: list[str] = []


class Tied(nn.Module):
    """Two names for one layer, a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(2, 3)
        self.register_buffer("mean", resilin.arange(3.0)[1:])
        self.size = (2, {"k": 5})

    def __setstate__(self, state: dict[str, Any]) -> None:
        RAN.append("set")
        super().__setstate__(state)

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x)[:, :2] + self.mean)


def there_and_back(thing: Any, **options: Any) -> Any:
    file = io.BytesIO()
    resilin.save(thing, file)
    file.seek(0)
    return resilin.load(file, **options)


def test_a_module_comes_back_with_what_it_shares():
    model = Tied()
    read = there_and_back({"model": model, "weight": model.a.weight, "epoch": 3}, weights_only=False)
    back = read["model"]
    assert type(back) is Tied
    assert back.a is back.b
    assert back.a.weight is read["weight"]
    assert back.size == (2, {"k": 5})
    assert read["epoch"] == 3
    x = resilin.ones(1, 2)
    assert resilin.equal(back(x), model(x))
    back(x).sum().backward()
    assert back.a.weight.grad is not None


def test_nothing_of_it_runs_unless_that_is_asked_for():
    RAN.clear()
    with pytest.raises(UsageError, match=r"holds a whole .*Tied.*add_safe_globals.* weights_only=False if you trust"):
        there_and_back(Tied())
    with pytest.raises(pickle.UnpicklingError, match="holds a whole"):
        there_and_back(Tied())
    assert RAN == []


def test_its_tensors_go_where_map_location_says():
    back = there_and_back(nn.Linear(2, 3), weights_only=False, map_location="meta")
    assert back.weight.is_meta
    assert isinstance(back.weight, nn.Parameter)


def test_a_module_that_cannot_be_pickled_says_so():
    model = nn.Linear(2, 3)
    model.function = lambda x: x
    with pytest.raises(UsageError, match=r"the object\['m'\] is a Linear, which cannot be pickled: .*state_dict"):
        resilin.save({"m": model}, io.BytesIO())


def test_an_error_of_the_class_itself_is_raised_as_it_is(monkeypatch):
    file = io.BytesIO()
    resilin.save(Tied(), file)
    file.seek(0)
    monkeypatch.delitem(globals(), "Tied")
    with pytest.raises(AttributeError, match="Tied"):
        resilin.load(file, weights_only=False)


def test_arguments_of_a_program_need_no_leave():
    args = argparse.Namespace(lr=0.5, sizes=(1, 2), seed=resilin.ones(2))
    back = there_and_back({"args": args})["args"]
    assert type(back) is argparse.Namespace
    assert (back.lr, back.sizes, back.seed.tolist()) == (0.5, (1, 2), [1.0, 1.0])
