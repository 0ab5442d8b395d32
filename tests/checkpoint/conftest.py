"""A server that speaks S3's protocol, for all tests of this folder: it takes a second to start."""

from collections.abc import Iterator

import pytest

from resilin.testing.s3_server import S3Server


@pytest.fixture(scope="session")
def _server() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket("models")
        yield server


@pytest.fixture
def server(_server: S3Server) -> Iterator[S3Server]:
    """One with the bucket "models", and without a fault; each file of tests has names of its own in it."""
    _server.heal()
    _server.requests()
    yield _server
    _server.heal()
