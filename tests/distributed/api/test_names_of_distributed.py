"""Every name of torch.distributed: here with its parameters, or on the page that says why not; facts about names."""

import inspect
import json
import re
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.errors import UsageError, UsageTypeError
from resilin.testing.check_group import CASES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "distributed.md").read_text()
TORCH = json.loads((ROOT / "tests" / "fixtures" / "torch_distributed.json").read_text())
TABLES, LEFT_OUT = PAGE.split("## Names of torch.distributed that are not here")
ROWS = re.findall(r"^\| `(\w+)` \| (.+) \| (.*) \| (.+) \|$", TABLES, re.MULTILINE)


def test_every_public_name_has_one_row_on_the_page():
    assert sorted(row[0] for row in ROWS) == sorted(dist.__all__)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_row_names_tests_that_are_there(row):
    named = re.findall(r"`([^`]+)`", row[3])
    assert named, row[0]
    for test in named:
        path, _, function = test.partition("::")
        if not function:
            assert test in CASES
        else:
            assert f"\ndef {function}(" in (ROOT / path).read_text(), test


def test_every_name_of_pytorch_is_here_or_is_said_to_be_left_out():
    names = [line.split("|")[1] for line in LEFT_OUT.splitlines() if line.startswith("| `")]
    left_out = set(re.findall(r"`(\w+)`", "".join(names)))
    assert set(TORCH) - set(dist.__all__) == left_out


@pytest.mark.parametrize("name", [name for name, parameters in TORCH.items() if parameters and name in dist.__all__])
def test_functions_take_the_parameters_of_pytorch_in_its_order_with_its_defaults(name):
    ours = inspect.signature(getattr(dist, name)).parameters
    theirs = [parameter for parameter in TORCH[name] if parameter[0] != "kwargs"]
    assert list(ours)[: len(theirs)] == [parameter[0] for parameter in theirs]
    for parameter, *default in theirs:
        found = ours[parameter].default
        assert not default or found is not inspect.Parameter.empty, parameter
        if default and not default[0].startswith("RedOpType"):
            assert str(found) == default[0], parameter


def test_complex_numbers_can_be_multiplied():
    yes = [op.name for op in dist.ReduceOp if dist.supports_complex(op)]
    assert yes == ["SUM", "AVG", "PRODUCT", "PREMUL_SUM"]
    assert dist.supports_complex(dist._make_nccl_premul_sum(2.0))
    with pytest.raises(TypeError, match="expected a number"):
        dist._make_nccl_premul_sum("2")


def test_the_default_timeout_is_that_of_pytorch():
    assert dist.default_pg_timeout == timedelta(minutes=30)


def test_the_local_rank_is_that_of_the_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert dist.get_node_local_rank(fallback_rank=3) == 3
    assert not dist.is_torchelastic_launched()
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not set"):
        dist.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert dist.get_node_local_rank(fallback_rank=3) == 2
    assert dist.is_torchelastic_launched()


def test_backends_that_are_not_there_are_not_said_to_be(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert dist.is_gloo_available()
    assert [dist.is_backend_available(name) for name in ("cpu", "GLOO", "cpu:gloo", "nope")] == [
        True,
        True,
        True,
        False,
    ]
    assert not dist.is_ucc_available()
    assert not dist.is_xccl_available()
    assert dist.is_nccl_available() == dist.is_backend_available("nccl")
    assert isinstance(dist.is_mpi_available(), bool)
    assert dist.get_default_backend_for_device("cpu") == "cpu"
    with pytest.raises(RuntimeError, match="no default backend"):
        dist.get_default_backend_for_device("tpu")


def test_the_world_is_the_default_group_of_now(tmp_path):
    assert dist.GroupMember.WORLD is None
    assert dist.get_pg_count() == 0
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=5.0)
    try:
        assert dist.group.WORLD is dist.GroupMember.WORLD is dist.default_group()
        assert dist.group.WORLD.group_desc == "default_pg"
        assert dist.get_rank(dist.group.WORLD) == 0
        assert dist.group.NON_GROUP_MEMBER is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_pg_count() == 1
    finally:
        dist.destroy_process_group()
    assert dist.group.WORLD is dist.GroupMember.WORLD is None


def test_default_groups_of_parts_of_a_job_meet_in_one_store():
    """`_ranks` keeps the keys of two default groups apart, which a name does, too."""
    store = dist.HashStore(timeout=5.0)
    for ranks in ([0, 2], [1, 3]):
        dist.init_process_group(store=dist.PrefixStore("job", store), rank=0, world_size=1, timeout=5.0, _ranks=ranks)
        name = dist._get_process_group_name(dist.default_group())
        dist.destroy_process_group()
        assert name == f"ranks-{ranks[0]}-{ranks[1]}"
    places = {key.split("/")[1] for key in store.list_keys()}
    assert places == {"ranks-0-2", "ranks-1-3"}


def test_a_scheme_of_others_is_a_rendezvous_once_it_has_a_handler(tmp_path, monkeypatch):
    asked = []

    def handler(url, timeout):
        asked.append((url, timeout))
        yield dist.HashStore(timeout=timeout), 0, 1

    monkeypatch.setattr(sys.modules["resilin.distributed.group.rendezvous"], "_HANDLERS", {})
    with pytest.raises(UsageError, match="unknown init_method 'meet://x'"):
        dist.init_process_group(init_method="meet://x", rank=0, world_size=1)
    dist.register_rendezvous_handler("meet", handler)
    with pytest.raises(UsageError, match="has a handler already"):
        dist.register_rendezvous_handler("meet", handler)
    with pytest.raises(UsageError, match="has a handler already"):
        dist.register_rendezvous_handler("tcp", handler)
    dist.init_process_group(init_method="meet://x?a=1", rank=0, world_size=1, timeout=5.0)
    dist.destroy_process_group()
    assert asked[0][0] == "meet://x?a=1&rank=0&world_size=1"
    [(store, rank, size)] = list(dist.rendezvous(f"file://{tmp_path}/store?rank=0&world_size=1", timeout=5.0))
    with store:
        assert (rank, size) == (0, 1)
        assert isinstance(store, dist.FileStore)


@pytest.mark.parametrize(
    "call",
    [
        lambda array: dist.all_reduce([array]),
        lambda array: dist.all_reduce(None),
        lambda array: dist.all_reduce(array, op="sum"),
        lambda array: dist.all_reduce(array, group="world"),
        lambda array: dist.all_gather(array, array),
        lambda array: dist.reduce_scatter(array, array),
        lambda array: dist.send([array], 0),
        lambda array: dist.P2POp(dist.isend, [array], 0),
        lambda array: dist.scatter_object_list(5, None),
    ],
)  # fmt: skip
def test_what_is_a_type_error_in_pytorch_is_one_here_and_also_a_usage_error(call, tmp_path):
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=5.0)
    try:
        with pytest.raises(TypeError) as caught:
            call(np.ones(1, np.float32))
        assert isinstance(caught.value, UsageTypeError)
        assert isinstance(caught.value, ValueError)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda array: dist.all_reduce([array]), "all_reduce: tensor: expected a tensor, got list"),
        (lambda array: dist.broadcast("x", 0), "broadcast: tensor: expected a tensor, got str"),
        (lambda array: dist.all_gather([array, None], array), r"all_gather: tensor_list\[1\]: .* got NoneType"),
        (lambda array: dist.reduce_scatter(array, [3]), r"reduce_scatter: input_list\[0\]: .* got int"),
        (lambda array: dist.reduce_scatter_tensor(array, [3]), "reduce_scatter_tensor: input: .* got list"),
        (lambda array: dist.all_to_all_single(array, {}), "all_to_all_single: input: .* got dict"),
        (lambda array: dist.all_reduce_coalesced([array, 1.0]), r"all_reduce_coalesced: tensors\[1\]: .* got float"),
        (lambda array: dist.all_gather([], [array]), "all_gather: tensor: .* got list"),
        (lambda array: dist.P2POp(dist.isend, [array], 0), "P2POp: tensor: .* got list"),
        (lambda array: dist.all_reduce(array.astype("S1")), "all_reduce: tensor: collectives do not carry dtype"),
        (lambda array: dist.scatter(np.broadcast_to(array, 3)), "scatter: tensor is .*, which cannot be written"),
    ],
)  # fmt: skip
def test_an_argument_that_is_no_fitting_tensor_is_named(call, named, tmp_path):
    dist.init_process_group(init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=5.0)
    try:
        with pytest.raises(UsageError, match=named):
            call(np.ones(1, np.float32))
    finally:
        dist.destroy_process_group()


def test_operators_are_written_as_in_a_program():
    assert str(dist.ReduceOp.SUM) == f"{dist.ReduceOp.SUM}" == format(dist.ReduceOp.SUM) == "ReduceOp.SUM"
    assert f"{dist.ReduceOp.PREMUL_SUM:>20}" == "ReduceOp.PREMUL_SUM".rjust(20)
    assert repr(dist.ReduceOp.MAX) == "<ReduceOp.MAX: 4>"
    assert (int(dist.ReduceOp.MAX), dist.ReduceOp(4), dist.ReduceOp["MAX"]) == (
        4,
        dist.ReduceOp.MAX,
        4,
    )
