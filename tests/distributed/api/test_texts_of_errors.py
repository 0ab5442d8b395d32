"""How errors write times."""

import socket

import pytest

from resilin import distributed as dist
from resilin._base.clock import spell
from resilin.errors import CollectiveTimeout, DistStoreError


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.499999, "0.5 s"),
        (3.99040831100001, "3.99 s"),
        (12.345, "12.3 s"),
        (30, "30 s"),
        (99.96, "100 s"),
        (1800.0, "1800 s"),
        (86400.25, "86400 s"),
        (1e9, "1000000000 s"),
        (0.0123456, "0.012 s"),
        (1e-6, "0 s"),
        (0, "0 s"),
        (None, "any time"),
    ],
)
def test_times_are_written_for_people(seconds, said):
    assert spell(seconds) == said


def test_errors_write_odd_limits_that_way():
    with pytest.raises(CollectiveTimeout, match=r"within 0\.01 s"):
        dist.Future().wait(0.00999999)
    with (
        dist.TCPStore("127.0.0.1", 0, is_master=True) as store,
        pytest.raises(DistStoreError, match=r"within 0\.01 s"),
    ):
        store.wait(["missing"], 0.0099999)


def test_a_rank_without_rank_0_is_told_what_its_last_attempt_met_and_nothing_of_the_inside():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(DistStoreError, match=r"within 0\.3 s \(.*refused") as caught:
            dist.init_process_group(init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2, timeout=0.3)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_missing_rank_is_told_in_one_error_without_a_chain():
    with pytest.raises(CollectiveTimeout, match="rank 1 missing after") as caught:
        dist.init_process_group(init_method="tcp://127.0.0.1:0", rank=0, world_size=2, timeout=0.3)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
