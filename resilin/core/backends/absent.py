"""What stands behind a device that this machine does not have: every use says why."""

from __future__ import annotations

from typing import Any, NoReturn


class Absent:
    """The backend and the namespace of `device("cuda")` and its like where there is none."""

    def __init__(self, type: str, why: str) -> None:
        self.type = type
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"no attribute {name!r}", name=name, obj=self)
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise RuntimeError, which says why there is no such device."""
        raise RuntimeError(
            f"{self._why}. The device is a name only, nothing can be put there: choose it by "
            "`'cuda' if resilin.cuda.is_available() else 'cpu'`, and load files of it with map_location='cpu'"
        )
