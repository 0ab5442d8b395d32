"""Tries a wheel where there is no compiler and no checkout: python scripts/smoke_wheel.py build/wheels/resilin-*.whl

Looks at what is in it, installs it into a bare virtual environment (its dependencies come from the package index, as
wheels), and there imports it, loads every native module, trains README's program alone and with two workers, runs a
program for PyTorch, and asks `resilin doctor`. Exit code 1 and the reason at the first thing that is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE_MAY_DIFFER = 0.2  # of what README says, by compilers and small changes; more is something packed by mistake
TIMEOUT_S = 300
NATIVE = re.compile(r"^(resilin/[\w/]+/_native)\.[\w-]+\.so$")
UNWANTED = re.compile(r"(^|/)(tests?|build|benchmarks|examples|docs|\.\w[^/]*)/|\.(cpp|hpp|o|a|pyc|md)$|CMakeLists")
WANTED = (
    "resilin/__init__.py",
    "resilin/core/kernels/cuda/",
    "resilin/profiler/view/page/page.html",
    "resilin/as_torch/_modules/torch.egg-info",
)


def problems(wheel: Path) -> list[str]:
    """What is wrong with the file's name, size or contents."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = [f"{name} does not belong into it" for name in names if UNWANTED.search(name)]
    found += [f"{one} is missing" for one in WANTED if not any(name.startswith(one) for name in names)]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("the license is missing")
    if not native_modules(names):
        found.append("no native module is in it")
    if "manylinux" not in wheel.name:
        found.append("its name has no manylinux tag: auditwheel repair writes one")
    size, stated = wheel.stat().st_size / 1e6, float(_in_readme(r"a wheel \((\d+\.\d) MB\)"))
    if abs(size - stated) > SIZE_MAY_DIFFER * stated:
        found.append(f"it has {size:.1f} MB, README says {stated} MB")
    return found


def native_modules(names: list[str]) -> list[str]:
    """The extension modules among a wheel's files, as they are imported."""
    return sorted(found.group(1).replace("/", ".") for name in names if (found := NATIVE.match(name)))


def _in_readme(pattern: str) -> str:
    found = re.search(pattern, (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"smoke: README.md has nothing like {pattern}")
    return found.group(1)


class Bare:
    """A virtual environment with nothing on the path but itself, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=True, symlinks=True)
        self.bin = folder / "venv" / "bin"
        self.environment = {
            "PATH": str(self.bin), "CC": "/bin/false", "CXX": "/bin/false", "HOME": str(folder), "LANG": "C.UTF-8",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def run(self, name: str, *arguments: str) -> str:
        """What a program of the environment prints; SystemExit with all of it when it fails."""
        command = [str(self.bin / name), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            output = done.stdout + done.stderr
            raise SystemExit(f"smoke: {name} {' '.join(arguments)}: exit code {done.returncode}\n{output}")
        return done.stdout


def expect(condition: bool, what: str, seen: str) -> None:
    """SystemExit unless `condition`."""
    if not condition:
        raise SystemExit(f"smoke: expected {what}; got:\n{seen}")


def use(bare: Bare, modules: list[str]) -> None:
    """Import, train and launch with what is installed."""
    code = f"import importlib, resilin\nfor name in {modules}: print(importlib.import_module(name).__file__)"
    files = bare.run("python", "-W", "error", "-c", code).split()
    expect(len(files) == len(modules) and all(file.startswith(str(bare.folder)) for file in files),
           f"{modules} from {bare.folder}", "\n".join(files))  # fmt: skip
    report = bare.run("resilin", "doctor")
    expect(re.search(r"^ok +kernels +native", report, re.MULTILINE) is not None, "native kernels", report)
    script = bare.folder / "train.py"
    script.write_text(_in_readme(r"^```python runnable\n(.*?)^```$"), encoding="utf-8")
    alone = bare.run("python", "-W", "error", str(script))
    expect(re.fullmatch(r"\d+\.\d% right\n", alone) is not None, "what README's program prints", alone)
    together = bare.run("elastic-run", "--standalone", "--nproc-per-node", "2", str(script))
    # a line of an unbuffered worker is two writes, between which the other one may write
    expect(together.replace("\n", "") == alone.strip() * 2, f"twice {alone!r} from two workers", together)
    printed = bare.run("python", "-m", "resilin.as_torch", "-c", "import torch; print(torch.ones(2).sum().item())")
    expect(printed == "2.0\n", "2.0 from a program for PyTorch", printed)


def main(argv: list[str]) -> int:
    """Look at the wheel, install it, use it."""
    (wheel,) = (Path(argument).resolve() for argument in argv)
    found = problems(wheel)
    if found:
        raise SystemExit("\n".join(f"smoke: {wheel.name}: {problem}" for problem in found))
    with zipfile.ZipFile(wheel) as archive:
        modules = native_modules(archive.namelist())
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resilin-wheel-") as folder:
        bare = Bare(Path(folder).resolve())
        bare.run("python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel))
        use(bare, modules)
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {size:.1f} MB, installed and used in {time.monotonic() - begin:.0f} s: {', '.join(modules)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
