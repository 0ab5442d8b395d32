"""Every implementation passes the same suite. A missing etcd fails the run: it is not skipped."""

from __future__ import annotations

import pytest

from resilin import store
from resilin.store.server import StoreServer
from resilin.testing.check_store import StoreConformance
from resilin.testing.etcd import EtcdCluster, find_system_etcd
from resilin.testing.job_secret import SECRET


class TestMemory(StoreConformance):
    @pytest.fixture
    def make_store(self):
        with store.MemoryStore() as root:
            yield root.session


class TestFile(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda: store.connect(f"file://{tmp_path}/store")


class TestEmbedded(StoreConformance):
    @pytest.fixture
    def make_store(self):
        with store.MemoryStore() as state, StoreServer(state, secret=SECRET) as server:
            yield lambda: store.connect(server.url, secret=SECRET)


@pytest.fixture(scope="module")
def etcd():
    with EtcdCluster() as cluster:
        yield cluster


class TestEtcd(StoreConformance):
    @pytest.fixture
    def make_store(self, etcd):
        return lambda: store.connect(etcd.url)


if find_system_etcd() is not None:  # a second version, where the system has one

    @pytest.fixture(scope="module")
    def system_etcd():
        with EtcdCluster(binary=find_system_etcd()) as cluster:
            yield cluster

    class TestSystemEtcd(StoreConformance):
        @pytest.fixture
        def make_store(self, system_etcd):
            return lambda: store.connect(system_etcd.url)
