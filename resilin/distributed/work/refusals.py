"""Why ranks refuse calls: told to all peers over the control channel, just before the call that is refused.

The call itself says only that its rank refuses it, so it stays as short as any other. Who hears that in a collective
finds the reason here: it was sent before, so it has come or comes in a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from resilin._base import json_text
from resilin.distributed.wire import error_codec

_PATIENCE_S = 10.0  # for a reason that was sent before what has come already
_MOST = 16  # reasons kept of each rank: of calls that nobody asked about, as where all ranks refuse


class Refusals:
    """What the peers of one rank have said of calls that they refuse."""

    def __init__(self, send: Callable[[str], None], patient: Callable[[], bool]) -> None:
        self._send = send
        self._patient = patient  # whether this thread may wait: not the one that reads what peers send
        self._news = threading.Condition()
        self._heard: dict[int, dict[str, Mapping[str, Any]]] = {}  # guarded by _news: by rank and call
        self._over = False  # guarded by _news
        self._told = 0

    def tell(self, call: str, error: BaseException, verb: str) -> None:
        """Tell all peers why this rank refuses `call`: a name that all ranks give it."""
        self._send(error_codec.encoded({**error_codec.described(error), "call": call, "verb": verb}))

    def number(self) -> int:
        """A number for a call of this rank alone, as of a message; from 0 on."""
        self._told += 1
        return self._told - 1

    def heard(self, rank: int, text: str) -> None:
        """`rank` has said why it refuses a call. Any thread."""
        try:
            reason = json_text.parse(text, finite=True)
            call = str(reason["call"])
        except (ValueError, KeyError, TypeError):
            return  # who asks waits in vain, and hears that there is a reason
        with self._news:
            mine = self._heard.setdefault(rank, {})
            mine[call] = reason
            while len(mine) > _MOST:
                del mine[next(iter(mine))]
            self._news.notify_all()

    def end(self) -> None:
        """The group has ended: nobody waits any more."""
        with self._news:
            self._over = True
            self._news.notify_all()

    def error(self, rank: int, call: str, where: str) -> Exception | None:
        """What this rank raises because `rank` refuses `call`: its error, with its rank and reason, of its class.

        None when nothing comes of it. where: what begins the message.
        """
        with self._news:
            if self._patient():
                self._news.wait_for(lambda: self._over or call in self._heard.get(rank, {}), _PATIENCE_S)
            reason = self._heard.get(rank, {}).pop(call, None)
        if reason is None:
            return None
        try:
            return error_codec.rebuilt(reason, rank, f"{where}rank {rank} {reason['verb']}: {error_codec.said(reason)}")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
