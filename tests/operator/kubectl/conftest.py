"""kubectl, the oldest and the newest that are there, against a server."""

from collections.abc import Callable
from pathlib import Path

import pytest

from resilin.testing.kube.kubectl import MISSING, Kubectl, Ran, found
from resilin.testing.kube.server import KubeServer

_THERE = found()
_CHOSEN = list(dict.fromkeys((*_THERE[:1], *_THERE[-1:])))


@pytest.fixture(
    params=_CHOSEN or [pytest.param(None, marks=pytest.mark.skip(MISSING))], ids=lambda one: f"1.{one.version}"
)
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    assert isinstance(request.param, Kubectl)
    return request.param


@pytest.fixture
def run(kubectl: Kubectl, kube: KubeServer, tmp_path: Path) -> Callable[..., str]:
    """Run kubectl; its output. `fails`: it must fail, and what it says of that is returned."""

    def run(*words: str, text: str | None = None, fails: bool = False, **variables: str) -> str:
        ran: Ran = kubectl.run(kube.url, tmp_path, *words, text=text, **variables)
        assert (ran.code != 0) == fails, f"kubectl {' '.join(words)}: {ran}"
        return ran.err if fails else ran.out

    return run
