"""Reads a Dockerfile, and carries out what it says in roots made by debootstrap: RUN, COPY, ENV, ARG, WORKDIR, USER.

It needs root and the Debian package `debootstrap` (`apt-get install debootstrap`), a mirror of Debian's and one of
Python's package indices, as `docker build` does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_RELEASE = "bookworm"  # of BASE
_PASSED_ON = re.compile(r"PIP_\w+|\w+_proxy", re.IGNORECASE)
_NOT_SLIM = ("doc", "info", "locale", "man")
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each on one line."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def make_base(folder: Path) -> Path:
    """A root of Debian's release, as small as its image is."""
    found = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "debootstrap is missing: apt-get install debootstrap"
    base = folder / "base"
    subprocess.run([found, "--variant=minbase", _RELEASE, str(base)], check=True, capture_output=True, timeout=1200)
    shutil.copy("/etc/resolv.conf", base / "etc" / "resolv.conf")
    for sources in Path("/etc/apt").glob("sources.list*"):
        target = base / "etc" / "apt" / sources.name
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        shutil.copytree(sources, target) if sources.is_dir() else shutil.copy(sources, target)
    _make_slim(base)
    return base


def _make_slim(base: Path) -> None:
    """Leave out what Debian's slim images leave out, now and with packages to come: caches, pages, translations."""
    quiet = 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\n'
    quiet += 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n'
    (base / "etc" / "apt" / "apt.conf.d" / "clean").write_text(quiet)
    excluded = "".join(f"path-exclude /usr/share/{name}/*\n" for name in _NOT_SLIM)
    (base / "etc" / "dpkg" / "dpkg.cfg.d" / "slim").write_text(excluded)
    for folder in (*(f"usr/share/{name}" for name in _NOT_SLIM), "var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(base / folder)
        (base / folder).mkdir()


@dataclass
class Stage:
    """One stage of an image."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entry_point: str = ""

    def run(self, command: list[str], timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
        """Run a command in this root, as its user. A failure is in what it returns."""
        mounts = 'mount --rbind /dev "$0/dev" && exec "$@"'
        enter = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.root}/proc", "sh", "-c", mounts]
        change = f'cd {shlex.quote(self.folder)} && exec "$@"'
        inner = ["chroot", f"--userspec={self.user}", str(self.root), "sh", "-c", change, "sh", *command]
        return subprocess.run(
            [*enter, str(self.root), *inner], env=self.environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip


def build(path: Path, base: Path, folder: Path) -> Stage:
    """Carry out a Dockerfile; its last stage. A RUN that fails is an AssertionError with what it said."""
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for word, rest in instructions(path):
        if word == "FROM":
            name = rest.partition(" AS ")[2] or f"stage-{len(stages)}"
            stage = stages[name] = Stage(folder / name, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
            subprocess.run(["cp", "--archive", "--reflink=auto", str(base), str(stage.root)], check=True, timeout=600)
        elif word == "ENV":
            for name, value in (part.split("=", 1) for part in shlex.split(rest)):
                stage.environment[name] = value.replace("$PATH", stage.environment["PATH"])
        elif word == "RUN":
            _run(stage, rest)
        elif word == "COPY":
            _copy(stage, rest, stages)
        elif word == "WORKDIR":
            stage.folder = rest
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entry_point = rest
        else:
            assert word in ("ARG", "LABEL", "CMD"), f"{word} is not known here"
    return stage


def _run(stage: Stage, command: str) -> None:
    """RUN, with what this machine needs to reach the indices, which is gone afterwards."""
    own = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    bundle = stage.root / _BUNDLE.lstrip("/")
    had = bundle.exists()
    if not had and Path(_BUNDLE).exists():
        bundle.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_BUNDLE, bundle)
        own["PIP_CERT"] = _BUNDLE
    outside = Stage(stage.root, {**own, **stage.environment, "DEBIAN_FRONTEND": "noninteractive"}, stage.folder)
    done = outside.run(["sh", "-c", command])
    assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if not had:
        bundle.unlink(missing_ok=True)


def _copy(stage: Stage, words: str, stages: dict[str, Stage]) -> None:
    *sources, target = words.split()
    origin = ROOT
    if sources[0].startswith("--from="):
        origin = stages[sources.pop(0).removeprefix("--from=")].root
    for source in sources:
        there = origin / source.lstrip("/")
        place = stage.root / target.lstrip("/")
        if target.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            place /= there.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            left_out = (
                shutil.ignore_patterns("__pycache__", "*.so") if origin is ROOT else None
            )  # as .dockerignore says
            shutil.copytree(there, place, symlinks=True, dirs_exist_ok=True, ignore=left_out)
        else:
            shutil.copy(there, place)
