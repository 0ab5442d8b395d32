"""Every transport passes the conformance suite."""

import os

import pytest

from resilin.dist import loader
from resilin.testing.check_group import CASES, GroupConformance
from resilin.testing.ranks import run_ranks, start_ranks


def test_native_shared_memory_is_built():
    assert loader.shared_memory, loader.why


class TestSharedMemory(GroupConformance):
    sizes = (1, 2, 3, 4)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="shm", abort=False).results()


class TestUnixStreams(GroupConformance):
    sizes = (2, 4)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="unix", abort=False).results()


class TestTcp(GroupConformance):
    sizes = (3,)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="tcp", abort=False).results()


class TestTwoHosts(GroupConformance):
    sizes = (3, 4, 5)

    @pytest.fixture
    def run(self):
        return lambda size, case: run_ranks(size, case, size, transport="hosts", abort=False).results()


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
@pytest.mark.parametrize("pure", [False, True], ids=["native", "without native code"])
def test_real_processes_pass_every_case(tmp_path, pure):
    source = "import sys; sys.modules['resilin.dist._native'] = None\n" + PROCESS if pure else PROCESS
    for rank in start_ranks(3, source, str(tmp_path)):
        with rank:
            code, out, err = rank.finish(60)
            assert code == 0, err
            assert out.count("passed") == len(CASES)
            assert out.splitlines()[-1] == ("stream" if pure else "shm")
    assert os.listdir(tmp_path) == []
