"""The real kubectl, which judges the test API server: finds those that are there, and runs them against one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from resilin._base import env
from resilin.testing.patience import PATIENCE_S

FOLDER_VARIABLE = "RESILIN_KUBECTL"
MISSING = (
    "no kubectl is there: on Debian `apt install kubernetes-client`; or `python scripts/fetch_kubectl.py FOLDER` and "
    f"{FOLDER_VARIABLE}=FOLDER"
)


@dataclass(frozen=True)
class Kubectl:
    """One kubectl. `version` is its minor: 20 of v1.20."""

    path: Path
    version: int

    def run(self, server: str, home: Path, *words: str, text: str | None = None, **variables: str) -> Ran:
        """Run it against a server; `text` is what it reads. `home` keeps what it knows of the server."""
        command = [str(self.path), "--server", server, *words]
        settings = {"HOME": str(home), "PATH": env.get("PATH") or os.defpath, **variables}
        done = subprocess.run(
            command,
            input=text or "",
            capture_output=True,
            text=True,
            env=settings,
            timeout=PATIENCE_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Ran:
    """How a run ended, and what it said."""

    code: int
    out: str
    err: str


def found() -> list[Kubectl]:
    """Those on PATH and in the folder that RESILIN_KUBECTL names, one of each version, the oldest first."""
    folder = env.get(FOLDER_VARIABLE)
    candidates = sorted(Path(folder).glob("kubectl*")) if folder else []
    on_path = shutil.which("kubectl")
    if on_path is not None:
        candidates.append(Path(on_path))
    by_version = {_version(path): path for path in reversed(candidates)}
    return [Kubectl(path, version) for version, path in sorted(by_version.items())]


def _version(path: Path) -> int:
    command = [str(path), "version", "--client", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told = json.loads(done.stdout)["clientVersion"]
    return int(str(told["minor"]).rstrip("+"))
