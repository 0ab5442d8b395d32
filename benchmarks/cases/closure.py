"""`python closure.py DISTRIBUTION`: bytes of a distribution and of all it requires, as JSON.

Standard library only: any interpreter can run it."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata

NOT_COUNTED = ("pip", "setuptools", "wheel")


def requirements(distribution: metadata.Distribution) -> list[str]:
    """Names of what `distribution` requires without extras, whether installed or not."""
    plain = [line for line in distribution.requires or [] if "extra ==" not in line]
    return [re.split(r"[\s;\[<>=!~(]", line, maxsplit=1)[0] for line in plain]


def size(distribution: metadata.Distribution) -> int:
    """Bytes of all files that the installer recorded."""
    paths = {path.locate() for path in distribution.files or []}
    return sum(path.stat().st_size for path in paths if path.is_file())  # type: ignore[attr-defined]


def closure(name: str) -> dict[str, int]:
    """Bytes per distribution, `name` and all it requires; requirements that are not installed are left out."""
    sizes: dict[str, int] = {}
    waiting = [name]
    while waiting:
        current = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if current in sizes or current in NOT_COUNTED:
            continue
        try:
            distribution = metadata.distribution(current)
        except metadata.PackageNotFoundError:
            if current == name:
                raise SystemExit(f"{name} is not installed here") from None
            continue
        sizes[current] = size(distribution)
        waiting += requirements(distribution)
    return sizes


if __name__ == "__main__":
    print(json.dumps(closure(sys.argv[1])))
