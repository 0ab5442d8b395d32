"""The type of `torch.__version__`: a text that compares as a version, with texts and with tuples of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<stage>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre>\d*))?"
    r"(?:-(?P<implicit>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE,
)
_STAGES = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
_FIRST, _LAST = (-1,), (1,)  # beside (0, ...), which stands for a part that is there


def _key(text: str) -> tuple[Any, ...] | None:
    """The order of versions as PEP 440 has it; None for a text that is none."""
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        return None
    release = [int(part) for part in found["release"].split(".")]
    while release and not release[-1]:
        release.pop()
    stage, post, dev = found["stage"], found["implicit"] or found["post"], found["dev"]
    pre: tuple[Any, ...] = (0, _STAGES.get(stage.lower(), stage.lower()), int(found["pre"] or 0)) if stage else _LAST
    if dev and not stage and not post:
        pre = _FIRST  # a development version comes before the first alpha
    local = tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in _parts(found["local"]))
    return (
        int(found["epoch"] or 0),
        release,
        pre,
        (0, int(found["implicit"] or found["post_number"] or 0)) if post else _FIRST,
        (0, int(found["dev_number"] or 0)) if dev else _LAST,
        local,
    )


def _parts(local: str | None) -> list[str]:
    return re.split(r"[-_.]", local.lower()) if local else []


class TorchVersion(str):
    """A version: `torch.__version__ >= (2, 1)` and `torch.__version__ >= "2.1"` ask what they mean.

    Beside a text that is no version it compares as a text.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def _keys(self, other: Any) -> tuple[Any, Any]:
        text = other if isinstance(other, str) or not isinstance(other, Iterable) else ".".join(map(str, other))
        own, others = _key(self), _key(text) if isinstance(text, str) else None
        return (str(self), text) if own is None or others is None else (own, others)

    def __eq__(self, other: object) -> bool:
        own, others = self._keys(other)
        return bool(own == others)

    def __lt__(self, other: Any) -> bool:
        own, others = self._keys(other)
        return bool(own < others)

    def __le__(self, other: Any) -> bool:
        own, others = self._keys(other)
        return bool(own <= others)

    def __gt__(self, other: Any) -> bool:
        own, others = self._keys(other)
        return bool(own > others)

    def __ge__(self, other: Any) -> bool:
        own, others = self._keys(other)
        return bool(own >= others)
