"""Every transport passes the conformance suite."""

import os

import extent
import pytest

from resilin.distributed.wire import loader
from resilin.testing.check_group import CASES, GroupConformance
from resilin.testing.ranks import run_ranks, start_ranks


def test_native_shared_memory_is_built():
    assert loader.shared_memory, loader.why


class TestSharedMemory(GroupConformance):
    sizes = (1, 3)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="shm", abort=False).results()


@pytest.mark.deep
class TestSharedMemoryOfOthers(TestSharedMemory):
    sizes = (2, 4)


class TestUnixStreams(GroupConformance):
    sizes = (2,)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="unix", abort=False).results()


@pytest.mark.deep
class TestUnixStreamsOfOthers(TestUnixStreams):
    sizes = (4,)


class TestTcp(GroupConformance):
    sizes = (3,)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="tcp", abort=False).results()


class TestTwoHosts(GroupConformance):
    sizes = (3,)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="hosts", abort=False).results()


@pytest.mark.deep
class TestTwoHostsOfOthers(TestTwoHosts):
    sizes = (4, 5)


PROCESS = """
import os
from resilin import dist
from resilin.testing.check_group import CASES
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(init_method=os.environ["TEST_INIT_METHOD"], rank=rank, world_size=size, timeout=20.0)
for name, case in CASES.items():
    case(rank, size)
    print("passed", name, flush=True)
print(dist.default_group().stats()["transport"])
dist.destroy_process_group()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("pure", extent.short([False, True], of=[False]), ids=["native", "without native code"])
def test_real_processes_pass_every_case(tmp_path, pure):
    source = "import sys; sys.modules['resilin.distributed._native'] = None\n" + PROCESS if pure else PROCESS
    for rank in start_ranks(3, source, str(tmp_path)):
        with rank:
            code, out, err = rank.finish(60)
            assert code == 0, err
            assert out.count("passed") == len(CASES)
            assert out.splitlines()[-1] == ("stream" if pure else "shm")
    assert os.listdir(tmp_path) == []
