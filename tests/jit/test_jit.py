"""torch.jit's names: nothing is compiled, marks change nothing, and what cannot be is an error that says what is."""

import copy
import logging
import pickle
import typing

import pytest

import resilin as torch
from resilin import nn
from resilin.jit import programs


class Net(nn.Module):
    scale: torch.jit.Final[float]

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.scale = 2.0

    @torch.jit.export
    def double(self, x):
        return x * self.scale

    @torch.jit.ignore
    def a(self, x):
        return x

    @torch.jit.ignore(drop=True)
    def b(self, x):
        return x

    @torch.jit.unused
    def c(self, x):
        return x

    def forward(self, x):
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            raise AssertionError("nothing is compiled")
        return self.double(self.a(self.b(self.c(self.fc(x)))))


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr("resilin._base.said_once._said", set())
    caplog.set_level(logging.WARNING, "resilin.jit")
    return caplog


def test_a_scripted_module_is_the_module_and_it_is_said_once(said):
    net = Net()
    assert torch.jit.script(net) is net
    assert torch.jit.script(Net()).scale == 2.0
    assert len([r for r in said.records if "nothing is compiled" in r.getMessage()]) == 1
    x = torch.ones(1, 2)
    assert torch.equal(net(x), net.fc(x) * 2)


def test_a_scripted_modules_save_says_how_weights_are_saved():
    net = torch.jit.script(Net())
    for module in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with pytest.raises(NotImplementedError, match=r"save_safetensors"):
            module.save("net.pt")
    assert set(net.state_dict()) == {"fc.weight", "fc.bias"}


def test_a_module_keeps_a_save_of_its_own():
    class Saving(Net):
        def save(self, path):
            return path

    assert torch.jit.script(Saving()).save("p") == "p"


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: torch.jit.load("net.pt"), r"'net\.pt'.*import_torch"),
        (lambda: torch.jit.save(Net(), "net.pt"), r"Net.*save_safetensors"),
        (lambda: torch.jit.trace(Net(), torch.ones(1, 2)), r"Net.*call the model itself"),
        (lambda: torch.jit.trace(torch.relu, torch.ones(1)), r"relu.*call the model itself"),
        (lambda: torch.jit.trace_module(Net(), {"forward": torch.ones(1, 2)}), r"call the model itself"),
    ],
)
def test_programs_are_refused_with_what_there_is_instead(call, instead):
    with pytest.raises(NotImplementedError, match=instead):
        call()


def test_marks_give_back_what_they_mark():
    def f(x):
        return x

    jit = torch.jit
    marks = (jit.script, jit.ignore, jit.unused, jit.export, jit.interface, jit._script_if_tracing, jit.script_method)
    assert all(mark(f) is f for mark in marks)
    assert jit.ignore()(f) is f
    assert jit.script(Net) is Net
    assert jit.Final is typing.Final
    assert jit.annotate(list[int], [1]) == [1]
    assert jit.Attribute(3, int).value == 3
    with pytest.raises(RuntimeError, match="bool or a function"):
        jit.ignore(3)


def test_a_class_with_script_methods_is_a_module():
    class Scripted(torch.jit.ScriptModule):
        @torch.jit.script_method
        def forward(self, x):
            return x + 1

    assert Scripted()(1) == 2
    with pytest.raises(NotImplementedError):
        Scripted().save("x")


def test_freezing_wants_a_module_that_is_evaluated():
    net = Net()
    with pytest.raises(RuntimeError, match="eval"):
        torch.jit.freeze(net)
    assert torch.jit.optimize_for_inference(torch.jit.freeze(net.eval())) is net


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ([1, 2], list[int], True),
        ([1, "a"], list[int], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        ((1, "a"), tuple[int, str], True),
        ((1, 2, 3), tuple[int, int], False),
        (None, typing.Optional[int], True),  # noqa: UP045 - the older spelling is what programs have
        (1, int | str, True),
        (1.0, (int, str), False),
        ([], dict[str, int], False),
    ],
)
def test_isinstance_looks_into_containers(value, kind, expected):
    assert torch.jit.isinstance(value, kind) is expected


def test_switches_of_a_compiler_are_kept_and_change_nothing():
    before = torch.jit.set_fusion_strategy([("STATIC", 1)])
    assert torch.jit.set_fusion_strategy(before) == [("STATIC", 1)]
    torch.jit.enable_onednn_fusion(True)
    assert torch.jit.onednn_fusion_enabled()
    torch.jit.enable_onednn_fusion(False)
    with torch.jit.optimized_execution(False), torch.jit.fuser("fuser1"), torch.jit.strict_fusion():
        assert programs._class_or_name(Net()) == "Net"
