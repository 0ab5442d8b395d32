"""One process: what is saved comes back equal, in place or as a tree; what does not fit is listed."""

import collections
import itertools
import math

import numpy as np
import pytest

import resilin
from resilin import checkpoint, nn, optim
from resilin.checkpoint import Sliced
from resilin.core import rng
from resilin.data import ElasticSampler
from resilin.errors import CheckpointError, CheckpointMismatch, UsageError, UsageTypeError

DTYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def trained(seed=0, steps=2):
    resilin.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(resilin.randn(4, 6)).sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def same(one, other):
    if isinstance(one, resilin.Tensor):
        return one.dtype is other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(tmp_path, name):
    dtype = getattr(resilin, name)
    values = resilin.arange(24).remainder(2 if name == "bool" else 100).to(dtype).reshape(4, 6)
    state = {"whole": values, "turned": values.t(), "odd": values[:, ::2], "none": values[:0], "one": values[1, 1]}
    checkpoint.save(tmp_path / "c", state)
    assert same(checkpoint.load(tmp_path / "c"), {key: value.clone() for key, value in state.items()})
    targets = {key: resilin.zeros_like(value) for key, value in state.items()}
    targets["turned"] = resilin.zeros(4, 6, dtype=dtype).t()
    held = dict(targets)
    checkpoint.load(tmp_path / "c", targets)
    assert same(targets, state)
    assert all(targets[key] is held[key] for key in held)


def test_plain_values_keep_their_types(tmp_path):
    state = {
        3: "int key", "3": "text key", (1, "a"): None, "tuple": (1, (2.5, [True])), "set": {1, 2}, "bytes": b"\x00\xff",
        "inf": [math.inf, -math.inf], "nan": math.nan, "big": 1 << 5000, "complex": 1 - 2j, "np": np.float32(1.5),
        "np16": np.int16(-3), "ordered": collections.OrderedDict(b=1, a=2), "dtype": resilin.bfloat16,
        "count": collections.Counter("aab"), "size": resilin.Size([2, 3]), "text": "ä\U0001f600\n",
        "frozen": frozenset("x"),
    }  # fmt: skip
    checkpoint.save(tmp_path, state)
    assert same(checkpoint.load(tmp_path), state)
    for fresh in ({}, dict.fromkeys(state)):
        checkpoint.load(tmp_path, fresh)
        assert same(fresh, state)
    with pytest.raises(CheckpointMismatch, match="missing in it: gone; unexpected in it: "):
        checkpoint.load(tmp_path, {"3": "other", "gone": 1})


def test_arrays_of_numpy_are_filled_in_place(tmp_path):
    state = {"a": np.arange(6.0).reshape(2, 3), "swapped": np.arange(4, dtype=">i4")}
    checkpoint.save(tmp_path, state)
    target = {"a": np.zeros((2, 3)), "swapped": np.zeros(4, np.int32)}
    array = target["a"]
    checkpoint.load(tmp_path, target)
    assert array is target["a"]
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert target["swapped"].tolist() == [0, 1, 2, 3]
    assert isinstance(checkpoint.load(tmp_path)["a"], np.ndarray)


def test_a_trained_state_goes_on_where_it_was(tmp_path):
    saved = trained()
    checkpoint.save(tmp_path, {**saved, "epoch": 7})
    fresh = {**trained(seed=9, steps=0), "epoch": 0}
    weight = fresh["model"][0].weight
    checkpoint.load(tmp_path, fresh)
    assert fresh["epoch"] == 7
    assert fresh["model"][0].weight is weight
    for name in saved:
        assert same(fresh[name].state_dict(), saved[name].state_dict())


def test_an_optimizer_keeps_the_memory_of_its_state(tmp_path):
    saved, other = trained(), trained(seed=5)
    checkpoint.save(tmp_path, saved)
    held = [entry["exp_avg"] for entry in other["optimizer"].state.values()]
    checkpoint.load(tmp_path, other)
    now = [entry["exp_avg"] for entry in other["optimizer"].state.values()]
    assert all(one is two for one, two in zip(held, now, strict=True))
    assert same(other["optimizer"].state_dict(), saved["optimizer"].state_dict())


def test_an_optimizer_with_state_takes_one_that_has_none(tmp_path):
    checkpoint.save(tmp_path, {"optimizer": trained(steps=0)["optimizer"]})
    other = trained()
    checkpoint.load(tmp_path, {"optimizer": other["optimizer"]})
    assert not other["optimizer"].state_dict()["state"]


def test_samplers_and_generators_go_on(tmp_path):
    sampler = ElasticSampler(range(100), batch_size=4, shards=2, seed=3)
    generator = rng.Generator(seed=11)
    for _ in range(3):
        sampler.advance(next(iter(sampler.steps())))
        resilin.randn(5, generator=generator)
    checkpoint.save(tmp_path, [sampler, generator])
    expected = resilin.randn(5, generator=generator)
    other, drawn = ElasticSampler(range(100), batch_size=4, shards=2, seed=3), rng.Generator(seed=1)
    checkpoint.load(tmp_path, [other, drawn])
    assert other.state_dict() == sampler.state_dict()
    assert same(resilin.randn(5, generator=drawn), expected)


def test_one_object_may_be_the_state(tmp_path):
    saved, other = trained()["model"], trained(seed=4)["model"]
    checkpoint.save(tmp_path, saved)
    assert checkpoint.load(tmp_path, other).missing_keys == []
    assert same(other.state_dict(), saved.state_dict())


def test_what_shares_memory_is_stored_once(tmp_path):
    table = resilin.randn(100, 4)
    path = checkpoint.save(tmp_path, {"in": table, "out": table})
    loaded = checkpoint.load(path)
    assert loaded["in"] is loaded["out"]
    assert checkpoint.list_checkpoints(path)[0].nbytes < 2 * table.nbytes
    apart = {"in": resilin.zeros(100, 4), "out": resilin.zeros(100, 4)}
    checkpoint.load(path, apart)
    assert same(apart["in"], table)
    assert same(apart["out"], table)


def test_tensors_of_other_devices_are_saved_and_filled(tmp_path):
    on_device = resilin.arange(12.0).reshape(3, 4).to("sim:1")
    checkpoint.save(tmp_path, {"t": on_device, "turned": on_device.t()})
    target = {"t": resilin.zeros(3, 4).to("sim:1"), "turned": resilin.zeros(4, 3)}
    checkpoint.load(tmp_path, target)
    assert target["t"].device == on_device.device
    assert target["t"].cpu().tolist() == on_device.cpu().tolist()
    assert target["turned"].tolist() == on_device.cpu().t().tolist()


def test_writes_are_counted_so_that_elastic_and_autograd_know(tmp_path):
    tensor = resilin.ones(3)
    checkpoint.save(tmp_path, {"t": tensor})
    before = tensor._writes
    checkpoint.load(tmp_path, {"t": tensor})
    assert tensor._writes > before


def test_slices_are_filled_where_they_lie(tmp_path):
    whole = resilin.arange(20.0).reshape(4, 5)
    checkpoint.save(tmp_path, {"w": whole})
    target = {"w": Sliced((4, 5), resilin.float32, 7, resilin.zeros(6))}
    checkpoint.load(tmp_path, target)
    assert target["w"].tensor.tolist() == [7, 8, 9, 10, 11, 12]


class Divided:
    """State of one rank of many, as a strategy offers it: it asks for what it holds."""

    def __init__(self, low, high):
        self.low, self.high, self.got = low, high, None

    def sharded_state_dict(self):
        return {}

    def load_sharded_state_dict(self, tree):
        self.shape, self.got, self.n = tuple(tree["w"].shape), tree["w"].part(self.low, self.high), tree["n"]


def test_an_object_reads_the_parts_that_it_asks_for(tmp_path):
    checkpoint.save(tmp_path, {"z": {"w": resilin.arange(20.0).reshape(4, 5), "n": 3}})
    target = Divided(3, 9)
    checkpoint.load(tmp_path, {"z": target})
    assert target.got.tolist() == [3, 4, 5, 6, 7, 8]
    assert target.shape == (4, 5)
    assert target.n == 3


def test_blocks_are_put_together_and_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("resilin.checkpoint.saving.BLOCK_BYTES", 1024)
    monkeypatch.setattr("resilin.checkpoint.plan.FILE_BYTES", 5000)
    monkeypatch.setattr("resilin.checkpoint.plan.files.__defaults__", (5000,))
    state = {"a": resilin.randn(3000), "b": resilin.randn(7), "c": resilin.randn(33, 33).t()}
    path = checkpoint.save(tmp_path, state)
    assert len(list(tmp_path.glob("data-*"))) == 4
    assert same(checkpoint.load(path), {key: value.clone() for key, value in state.items()})
    assert checkpoint.verify(path) == []


def test_another_model_is_refused_with_lists_and_nothing_changes(tmp_path):
    checkpoint.save(tmp_path, trained())
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(8), nn.Linear(8, 3, bias=False), nn.Linear(1, 1))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoint.load(tmp_path, {"model": model, "ema": resilin.zeros(2)})
    error = caught.value
    assert set(error.missing) == {"model/3.weight", "model/3.bias", "ema"}
    assert set(error.unexpected) == {"model/2.bias", "optimizer", "scheduler"}
    assert [text.split(":")[0] for text in error.different] == ["model/0.weight", "model/0.bias"]
    assert "model/0.weight: float32[8, 6] in the checkpoint, float32[9, 6] here" in str(error)
    assert same(model.state_dict(), before)


def test_other_dtypes_are_refused_or_converted(tmp_path):
    checkpoint.save(tmp_path, {"t": resilin.tensor([1.5, 2.5])})
    target = {"t": resilin.zeros(2, dtype=resilin.float64)}
    with pytest.raises(CheckpointMismatch, match=r"t: float32\[2\] in the checkpoint, float64\[2\] here"):
        checkpoint.load(tmp_path, target)
    checkpoint.load(tmp_path, target, strict=False)
    assert target["t"].dtype is resilin.float64
    assert target["t"].tolist() == [1.5, 2.5]


def test_not_strict_loads_what_fits_and_says_what_did_not(tmp_path):
    saved = trained()
    checkpoint.save(tmp_path, {"model": saved["model"], "old": 1})
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3), nn.Linear(3, 1))
    kept = model[3].weight.clone()
    loaded = checkpoint.load(tmp_path, {"model": model, "new": resilin.ones(1)}, strict=False)
    assert set(loaded.missing_keys) == {"model/3.weight", "model/3.bias", "new"}
    assert loaded.unexpected_keys == ["old"]
    assert same(model[0].weight, saved["model"][0].weight)
    assert same(model[3].weight, kept)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, object()]}, r"the state\['a'\]\[1\] is a object"),
        ({"a": lambda: 1}, r"the state\['a'\] is a function"),
        ({"a": np.array(["x"])}, r"the state\['a'\] is numpy's ndarray"),
        ({"a": np.ma.array([1, 2], mask=[0, 1])}, r"the state\['a'\] is a masked array, whose mask would be lost"),
        ({"m": nn.LazyLinear(3)}, r"the state\['m'\]\['weight'\] has no shape yet"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, state, message):
    with pytest.raises(UsageError, match=message):
        checkpoint.save(tmp_path / "c", state)
    assert not (tmp_path / "c").exists()


def test_a_state_that_contains_itself_is_refused(tmp_path):
    state = {}
    state["self"] = state
    with pytest.raises(UsageError, match="contains itself"):
        checkpoint.save(tmp_path / "c", state)


def test_arguments_are_checked(tmp_path):
    for wrong in ({"step": -1}, {"step": 1.5}, {"step": 1 << 62}, {"keep_last": 2}, {"keep_last": -1, "step": 1}):
        with pytest.raises(UsageError):
            checkpoint.save(tmp_path / "c", {}, **wrong)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, {"a": 1}, step=3)
    with pytest.raises(CheckpointError, match="step-4 is no checkpoint"):
        checkpoint.load(tmp_path, step=4)


@pytest.mark.parametrize("make", [np.int64, np.uint8, resilin.tensor])
def test_a_step_may_be_any_kind_of_integer(tmp_path, make):
    assert checkpoint.save(tmp_path, {"a": 1}, step=make(3), keep_last=make(1)) == str(tmp_path / "step-3")
    checkpoint.save_async(tmp_path, {"a": 2}, step=make(4)).wait()
    assert checkpoint.load(tmp_path, step=make(3)) == {"a": 1}
    assert checkpoint.verify(tmp_path, step=make(4)) == []
    assert type(checkpoint.load(tmp_path, {"a": 0}).step) is int
    for wrong in (True, np.bool_(True), np.float64(3), "3"):
        with pytest.raises(UsageError, match="step must be an int of at least 0"):
            checkpoint.save(tmp_path, {"a": 1}, step=wrong)


@pytest.mark.parametrize("strict", [True, False])
def test_memory_that_cannot_be_written_to_is_named_before_anything_changes(tmp_path, strict):
    checkpoint.save(tmp_path, {"a": np.ones(3), "b": {"c": np.ones(3)}})
    frozen = np.zeros(3, np.float64)
    frozen.flags.writeable = False
    target = {"a": np.zeros(3), "b": {"c": frozen}}
    with pytest.raises(UsageError, match="load: b/c is a read-only array, which cannot be filled; give a copy of it"):
        checkpoint.load(tmp_path, target, strict=strict)
    assert not target["a"].any()
    expanded = resilin.zeros(1, dtype=resilin.float64).expand(3)
    with pytest.raises(UsageError, match="load: b/c is expanded or read-only memory"):
        checkpoint.load(tmp_path, {"a": np.zeros(3), "b": {"c": expanded}}, strict=strict)


def test_files_of_others_stay_beside_a_checkpoint_and_in_folders_of_its_kind_of_name(tmp_path):
    theirs = [tmp_path / name for name in ("data-train.csv", "part-00000.parquet", "step-99/data-2024.csv")]
    (tmp_path / "step-99").mkdir()
    for file in theirs:
        file.write_text("theirs")
    checkpoint.save(tmp_path, {"a": 1})
    for step in (1, 2):
        checkpoint.save(tmp_path, {"a": 1}, step=step, keep_last=1)
    assert [file.read_text() for file in theirs] == ["theirs"] * 3
    assert not (tmp_path / "step-1").exists()
    assert checkpoint.load(tmp_path / "step-2") == {"a": 1}


def test_of_a_linked_checkpoint_that_is_one_too_many_only_the_link_goes(tmp_path):
    checkpoint.save(tmp_path / "kept", {"a": resilin.ones(2)})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-0").symlink_to(tmp_path / "kept")
    checkpoint.save(tmp_path / "run", {"a": resilin.zeros(2)}, step=5, keep_last=1)
    assert not (tmp_path / "run" / "step-0").exists()
    assert checkpoint.verify(tmp_path / "kept") == []


def test_kinds_that_differ_are_told(tmp_path):
    checkpoint.save(tmp_path, {"a": 1.5, "b": resilin.ones(2), "c": [resilin.ones(1)], "d": resilin.ones(1)})
    state = {"a": resilin.ones(1), "b": nn.Linear(1, 1), "c": [resilin.ones(1)] * 2, "d": {"x": resilin.ones(1)}}
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoint.load(tmp_path, state)
    assert len(caught.value.different) == 4


@pytest.mark.parametrize("path", [None, 3, b"run", ["run"]])
def test_a_path_of_a_wrong_type_is_told(path):
    for call in (checkpoint.latest, checkpoint.load, checkpoint.verify, lambda path: checkpoint.save(path, {})):
        with pytest.raises(UsageTypeError, match=r"expected a path as text or .* a URL, or a Storage, got"):
            call(path)


def test_options_of_a_wrong_type_are_told(tmp_path):
    for path in (tmp_path, "memory://options"):
        with pytest.raises(UsageTypeError, match="options are a dict by names, got 'key'"):
            checkpoint.save(path, {}, options="key")


@pytest.mark.parametrize("state", [5, "text", None, (1, 2), {1}])
def test_a_state_that_nothing_can_be_put_in_is_told(tmp_path, state):
    checkpoint.save(tmp_path, state)
    assert checkpoint.load(tmp_path) == state
    if state is not None:
        with pytest.raises(UsageError, match="without tensors or objects, which cannot be filled"):
            checkpoint.load(tmp_path, state)


def test_an_integer_of_a_thousand_digits_is_shown_by_its_length(tmp_path):
    checkpoint.save(tmp_path, {"a": 1 << 20_000})
    with pytest.raises(CheckpointMismatch, match="a: an int of 20001 bits in the checkpoint"):
        checkpoint.load(tmp_path, {"a": resilin.zeros(2)})
    assert checkpoint.load(tmp_path)["a"] == 1 << 20_000


def test_a_wrapped_models_names_are_explained(tmp_path):
    inner = nn.Linear(2, 2)
    checkpoint.save(tmp_path, {"model": nn.ModuleDict({"module": inner})})
    with pytest.raises(CheckpointMismatch, match=r"DistributedDataParallel, .* give its \.module\. Nothing"):
        checkpoint.load(tmp_path, {"model": inner})
    checkpoint.save(tmp_path, inner)
    with pytest.raises(CheckpointMismatch, match=r"give its \.module"):
        checkpoint.load(tmp_path, nn.ModuleDict({"module": inner}))
    with pytest.raises(CheckpointMismatch, match="strict=False loads what fits"):
        checkpoint.load(tmp_path, nn.ModuleDict({"other": inner}))


def test_latest_may_be_given_as_a_path(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path / "run", {"n": step}, step=step)
    newest, where = str(tmp_path / "run" / "step-2"), tmp_path / "run" / "latest"
    assert checkpoint.load(where)["n"] == 2
    assert checkpoint.latest(where) == newest
    assert checkpoint.verify(str(where)) == []
    assert [one.step for one in checkpoint.list_checkpoints(where)] == [1, 2]
    with pytest.raises(CheckpointError, match=r"other/latest holds no complete checkpoint"):
        checkpoint.load(tmp_path / "other" / "latest")
    for save, arguments in itertools.product((checkpoint.save, checkpoint.save_async), ({"step": 3}, {})):
        with pytest.raises(UsageError, match=r"run/latest is the file that names the newest .* save to .*/run$"):
            save(where, {"n": 3}, **arguments)
    assert checkpoint.load(where)["n"] == 2
    checkpoint.save(tmp_path / "latest", {"n": 3})  # a folder of that name is a folder
    assert checkpoint.load(tmp_path / "latest")["n"] == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda url, options: checkpoint.latest(url, options=options),
        lambda url, options: checkpoint.list_checkpoints(url, options=options)[0].path,
        lambda url, options: checkpoint.load(url, options=options),
        lambda url, options: checkpoint.verify(url, options=options),
        lambda url, options: checkpoint.load_safetensors(f"{url}/m.safetensors", options=options),
        lambda url, options: checkpoint.save_safetensors({}, f"{url}/m.safetensors", options=options),
        lambda url, options: checkpoint.import_torch(f"{url}/m.pt", options=options),
    ],
)
def test_options_reach_the_storage_of_every_call(call):
    with pytest.raises(UsageTypeError, match="options are a dict by names, got 'of all calls'"):
        call("memory://options", "of all calls")


def test_where_only_dtypes_differ_it_is_said_how_to_convert(tmp_path):
    checkpoint.save(tmp_path, {"a": resilin.ones(2), "b": resilin.ones(3)})
    doubles = {"a": resilin.zeros(2, dtype=resilin.float64), "b": resilin.zeros(3)}
    with pytest.raises(CheckpointMismatch, match=r"a: float32\[2\] in .*; strict=False converts dtypes. Nothing"):
        checkpoint.load(tmp_path, doubles)
    with pytest.raises(CheckpointMismatch) as told:
        checkpoint.load(tmp_path, {**doubles, "b": resilin.zeros(4)})
    assert "strict=False" not in str(told.value)


def test_a_checkpoint_without_a_step_lies_beside_those_of_steps(tmp_path):
    """The newest is the one that was saved last, whatever its kind; docs/checkpoints.md says so."""
    run = tmp_path / "run"
    for number, step in enumerate([1, None, 2, None, 3]):
        checkpoint.save(run, {"n": number}, step=step, keep_last=2 if step == 3 else 0)
        assert checkpoint.load(run) == {"n": number}
        assert checkpoint.latest(run) == str(run if step is None else run / f"step-{step}")
        assert (run / "latest").read_text() == ("step-1\n", "step-1\n", "step-2\n", "step-2\n", "step-3\n")[number]
    assert [one.name for one in checkpoint.list_checkpoints(run)] == ["", "step-3"]
    assert checkpoint.load(run, step=3) == {"n": 4}
