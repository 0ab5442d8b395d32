"""A client of the test API server."""

import pytest
from raw_client import RawClient

from resilin.testing.kube.server import KubeServer


@pytest.fixture
def client(kube: KubeServer) -> RawClient:
    return RawClient(kube.url)
