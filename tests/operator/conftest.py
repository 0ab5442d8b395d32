"""Fixtures of tests about Kubernetes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilin.operator.crd.definition import definition
from resilin.testing.kube.server import KubeServer


@pytest.fixture
def repository() -> Path:
    """Where manifests are: not in an installed package."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def kube() -> Iterator[KubeServer]:
    """A server that knows ElasticJobs."""
    with KubeServer() as server:
        server.create(definition())
        yield server
