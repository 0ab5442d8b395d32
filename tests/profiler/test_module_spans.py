"""Modules in a profile."""

import pytest

import resilin as torch
from resilin.profiler import profile


class Fails(torch.nn.Module):
    def forward(self, x):
        raise ValueError("as it should")


def test_calls_of_modules_are_events_that_hold_their_operations():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with profile(with_modules=True) as prof:
        model(torch.ones(1, 3))
        model(torch.ones(1, 3))
        with pytest.raises(ValueError, match="as it should"):
            Fails()(torch.ones(1))
    calls = [event for event in prof.events() if event.name.startswith("nn.Module: ")]
    names = [event.name.removeprefix("nn.Module: ") for event in calls]
    assert names == ["Sequential_0", "Linear_0", "ReLU_0", "Linear_1"] * 2 + ["Fails_0"]
    assert {child.name for child in calls[1].cpu_children} == {"aten::linear"}
    assert [child.name for child in calls[0].cpu_children] == [event.name for event in calls[1:4]]
    assert not torch.nn.modules.global_hooks.EVERYWHERE.get("_forward_pre_hooks")


def test_modules_are_not_there_unless_asked_for():
    with profile() as prof:
        torch.nn.Linear(3, 4)(torch.ones(1, 3))
    assert not [event.name for event in prof.events() if event.name.startswith("nn.Module")]
