"""Kernels that were compiled beforehand, for a GPU that is there for minutes: a folder of CUBINs, and what they are of.

`check` compiles them, without a GPU. A kernel is found by its whole source and options, so one of another version of
this library is not taken for it; what is not found is compiled when it is first used.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from resilin.core.kernels.cuda import sources

NAMES = "names.json"  # of a folder: architecture and key of a source -> its file, and the symbol of each kernel

Names = dict[str, tuple[str, dict[str, str]]]

_used: list[Path] = []


def use(folder: Path | None) -> None:
    """Look for kernels in `folder` from now on; None: nowhere."""
    _used[:] = [] if folder is None else [folder]


def find(source: str, kernel: str, architecture: str) -> tuple[str, str] | None:
    """(path of a CUBIN, symbol) of a kernel for an architecture such as sm_90; None where there is none."""
    for folder in _used:
        found = _names(folder).get(f"{architecture} {key(source)}")
        if found is not None and kernel in found[1]:
            return str(folder / found[0]), found[1][kernel]
    return None


def key(source: str) -> str:
    """What a source is found by."""
    return hashlib.sha256("\0".join([*sources.options(source), sources.text(source)]).encode()).hexdigest()


def save(folder: Path, architecture: str, file: str, cubin: bytes, symbols: dict[str, dict[str, str]]) -> None:
    """Keep a CUBIN; `symbols`: for each source in it, the symbol of each of its kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(cubin)
    names = dict(_names(folder)) if (folder / NAMES).exists() else {}
    names.update({f"{architecture} {key(source)}": (file, of) for source, of in symbols.items()})
    (folder / NAMES).write_text(json.dumps(names), encoding="utf-8")
    _names.cache_clear()


@functools.cache
def _names(folder: Path) -> Names:
    found: Names = json.loads((folder / NAMES).read_text(encoding="utf-8"))
    return found
