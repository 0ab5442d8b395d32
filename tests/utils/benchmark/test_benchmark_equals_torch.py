"""Figures, tables and draws are PyTorch's: tests/fixtures/make_torch_benchmark.py wrote what is compared with."""

import json
from pathlib import Path

import pytest

import resilin
from resilin.utils import benchmark
from resilin.utils.benchmark.op_fuzzers.binary import BinaryOpFuzzer
from resilin.utils.benchmark.op_fuzzers.spectral import SpectralOpFuzzer
from resilin.utils.benchmark.op_fuzzers.unary import UnaryOpFuzzer

FIXTURES = Path(__file__).parents[2] / "fixtures"
TORCH = json.loads((FIXTURES / "torch_benchmark.json").read_text())


def measure(number, times, task):
    return benchmark.Measurement(number, times, benchmark.TaskSpec(**task))


@pytest.mark.parametrize("case", TORCH["measurements"], ids=range(len(TORCH["measurements"])))
def test_statistics_and_texts_of_a_measurement(case):
    one = measure(case["number"], case["times"], case["task"])
    assert (one.median, one.mean, one.iqr) == pytest.approx((case["median"], case["mean"], case["iqr"]), rel=1e-12)
    assert one.significant_figures == case["figures"]
    assert one.has_warnings == case["warns"]
    assert (one.title, one.as_row_name) == (case["title"], case["row"])
    address, _, text = repr(one).partition("\n")
    assert address.startswith("<resilin.utils.benchmark.utils.common.Measurement object at 0x")
    assert text == case["repr"]


@pytest.mark.parametrize("case", TORCH["tables"], ids=range(len(TORCH["tables"])))
def test_tables_are_equal_to_the_character(case):
    table = benchmark.Compare([measure(*each) for each in case["measurements"]])
    if case["trims"]:
        table.trim_significant_figures()
    if case["warns"]:
        table.highlight_warnings()
    if case["rowwise"] is not None:
        table.colorize(rowwise=case["rowwise"])
    assert str(table) == case["text"]


def test_units():
    for seconds, unit, scale in TORCH["units"]:
        assert benchmark.select_unit(seconds) == (unit, scale), seconds


def test_trimmed_figures():
    for value, figures, trimmed in TORCH["trimmed"]:
        assert benchmark.trim_sigfig(value, figures) == trimmed, (value, figures)


@pytest.fixture
def no_memory(monkeypatch):
    """Tensors of fuzzers, up to 2 GiB large, are made without elements."""

    def empty(size, dtype, **params):
        return resilin.empty(size, dtype=dtype, device="meta")

    monkeypatch.setattr(benchmark.FuzzedTensor, "default_tensor_constructor", staticmethod(empty))


@pytest.fixture
def custom_fuzzer(monkeypatch):
    """The fuzzer that both sides make by the same function."""
    text = (FIXTURES / "make_torch_benchmark.py").read_text()
    start = text.index("def custom_fuzzer(")
    names = {}
    exec(text[start : text.index("\n\n\n", start)], names)
    return lambda seed: names["custom_fuzzer"](benchmark, seed)


@pytest.mark.parametrize("case", TORCH["draws"], ids=lambda case: f"{case['fuzzer']}-{case['seed']}")
def test_a_seed_gives_the_same_parameters_and_layouts(case, no_memory, custom_fuzzer):
    fuzzer = {
        "unary": UnaryOpFuzzer,
        "binary": BinaryOpFuzzer,
        "spectral": lambda seed: SpectralOpFuzzer(seed=seed, probability_regular=0.7),
        "custom": custom_fuzzer,
    }[case["fuzzer"]](case["seed"])
    taken = []
    for tensors, properties, params in fuzzer.take(len(case["taken"])):
        for name, said in properties.items():
            assert said["numel"] == tensors[name].numel()
            assert said["is_contiguous"] == tensors[name].is_contiguous()
            said |= {"order": said["order"].tolist(), "steps": list(said["steps"])}
            said["dtype"] = said["dtype"].removeprefix("resilin.")
        taken.append({"params": params, "properties": properties})
    assert taken == case["taken"]
    assert fuzzer.rejection_rate == case["rejections"]
