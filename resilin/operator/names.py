"""Names, labels and annotations that the operator writes and reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GROUP = "resilin.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"

MANAGER = "resilin-operator"
"""The field manager of everything the operator applies, and what `managedBy` may name."""
MANAGED_BY = f"{GROUP}/operator"
FINALIZER = f"{GROUP}/teardown"

JOB = f"{GROUP}/job"
INDEX = f"{GROUP}/index"
INCARNATION = f"{GROUP}/incarnation"
ROLE = f"{GROUP}/role"
WORKER, RENDEZVOUS = "worker", "rendezvous"

CONTAINER = "worker"
"""The container that runs `elastic-run`: the one of this name, else the template's first."""
STORE_PORT = 29400
HEALTH_PORT = 29410
SECRET_FOLDER = "/var/run/resilin/secret"
SECRET_KEY = "secret"
TLS_FOLDER = "/var/run/resilin/tls"
TERMINATION_FILE = "/dev/termination-log"


_AGENTS = ("elastic-run", "torchrun")


def is_agent(container: Mapping[str, Any]) -> bool:
    """Return whether the container's command is an agent itself, which SIGTERM reaches as it is."""
    words = container.get("command") or ("",)
    return str(words[0]).rpartition("/")[2] in _AGENTS


def pod(job: str, index: int, incarnation: int = 0) -> str:
    """Return the name of a worker's pod: `JOB-INDEX`, and a suffix where an earlier one may still live.

    The suffix ends in no bare number, so that jobs `a` and `a-1` never want pods of one name.
    """
    return f"{job}-{index}-r{incarnation}" if incarnation else f"{job}-{index}"


def rendezvous(job: str, incarnation: int = 0) -> str:
    """Return the name of the pod that serves the store; without incarnation, of the Service in front of it, too."""
    return f"{job}-rdzv-r{incarnation}" if incarnation else f"{job}-rdzv"


def secret(job: str, uid: str) -> str:
    """Return the name of the Secret that the operator makes where the job names none.

    A job that is made anew has another one: the collector may still be about to remove that of the job before it.
    """
    return f"{job}-secret-{uid[:8]}"


def selector(job: str, role: str = WORKER) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {JOB: job, ROLE: role}


def selector_text(job: str) -> str:
    """Return the workers' selector as the scale sub-resource wants it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(job).items()))
