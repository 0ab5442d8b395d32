"""A cluster over HTTP without kubelets, and an operator in it."""

from collections.abc import Iterator

import pytest
from running_operator import ClusterUnderTest, RunningOperator, impatient

from resilin.testing.kube.server import KubeServer


@pytest.fixture
def cluster() -> Iterator[ClusterUnderTest]:
    with KubeServer() as server:
        server.create(impatient())
        yield ClusterUnderTest(server)


@pytest.fixture
def operator(cluster: ClusterUnderTest) -> Iterator[RunningOperator]:
    with RunningOperator(cluster.url) as running:
        yield running
