"""Lists the public names of resilin, one `package.name` a line.

python scripts/public_names.py            print them
python scripts/public_names.py --write    freeze them in tests/project/public_names.txt
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "project" / "public_names.txt"


def packages() -> list[str]:
    """Every importable package of resilin whose name does not start with an underscore."""
    found = []
    for init in sorted((ROOT / "resilin").rglob("__init__.py")):
        parts = init.parent.relative_to(ROOT).parts
        if not any(part.startswith("_") for part in parts):
            found.append(".".join(parts))
    return found


def lines() -> list[str]:
    """The public names, sorted."""
    return sorted(f"{package}.{name}" for package in packages() for name in _all(package))


def _all(package: str) -> list[str]:
    return list(getattr(importlib.import_module(package), "__all__", ()))


def main(argv: list[str]) -> int:
    """The command line."""
    text = "".join(f"{line}\n" for line in lines())
    if argv == ["--write"]:
        FROZEN.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
