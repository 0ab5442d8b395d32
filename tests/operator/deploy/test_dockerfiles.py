"""The images: pinned by hash, small, for a user without rights; linted by hadolint and by what it does not know."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from dockerfile import instructions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from resilin.testing.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
LOCKED = sorted(DOCKER.glob("requirements-*.txt"))
EXTRAS = {"cpu": ("k8s", "s3"), "cuda": ("k8s", "s3", "cuda12")}


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """The packages of a requirements file: the version of each, and how many hashes it has."""
    found: dict[str, tuple[str, int]] = {}
    for block in re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)):
        name, _, version = block.split()[0].partition("==")
        found[canonicalize_name(name.partition("[")[0])] = (version, block.count("--hash=sha256:"))
    return found


def test_there_are_two_images():
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path):
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "hadolint is missing: pip install 'resilin[test]'"
    command = [str(hadolint), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_small_and_runs_without_rights(path: Path):
    told = instructions(path)
    stages = [rest for word, rest in told if word == "FROM"]
    assert len(stages) == 2, "what builds stays out of the image"
    last = told[max(at for at, (word, _) in enumerate(told) if word == "FROM") :]
    assert dict(told)["ARG"] == "BASE=debian:bookworm-slim"
    assert [rest for word, rest in last if word == "USER"] == ["10001:10001"], "a number: kubelets ask for it"
    assert last[-2][0] == "ENTRYPOINT"
    assert last[-2][1].startswith("[")
    assert not any(word == "ADD" for word, _ in told)
    for word, rest in told:
        if word != "RUN":
            continue
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        for install in re.findall(r"pip (?:--python \S+ )?install [^&]*", rest):
            assert "--no-cache-dir" in install
            assert "--require-hashes" in install or "--no-index" in install, install
        assert not re.search(r"\bcurl\b|\bwget\b|\bsudo\b|chmod 777", rest)


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.name)
def test_every_package_is_pinned_by_hash(path: Path):
    packages = locked(path)
    assert packages
    assert [name for name, (version, hashes) in packages.items() if not version or not hashes] == []


@pytest.mark.parametrize("image", EXTRAS)
def test_what_is_pinned_is_what_the_project_asks_for(image: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = locked(DOCKER / f"requirements-{image}.txt")
    wanted = list(project["dependencies"])
    for extra in EXTRAS[image]:
        wanted += project["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        version, _ = packages[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} but {version} is pinned"


def test_the_build_context_has_what_is_copied_and_nothing_private():
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    for path in DOCKERFILES:
        for word, rest in instructions(path):
            if word == "COPY" and not rest.startswith("--from"):
                for source in rest.split()[:-1]:
                    assert source in let_in or Path(source).match("deploy/docker/requirements-*.txt"), source
    assert not {".git", ".venv", "tests"} & let_in
