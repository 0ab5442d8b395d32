"""The server's side of one Watch stream: many watches, their events in revision order on one queue."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

from resilin.errors import Compacted
from resilin.store.base import Event, to_text
from resilin.store.convert import event_to_wire
from resilin.store.messages import new
from resilin.store.shared_state import SharedState, Subscription

MAX_QUEUED = 10_000  # responses a client may leave unread before its stream is cut; it resumes where it was
_NO_PUT, _NO_DELETE = 0, 1  # etcd's event filters


class WatchStream:
    """Feed it requests with `handle`, iterate `responses()`; `finish()` ends the iteration from any thread."""

    def __init__(self, hub: SharedState) -> None:
        self._shared_state = hub
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watches: dict[int, Subscription] = {}  # touched by the stream's reader only, and after it ended
        self._finished = False

    def handle(self, request: Any) -> None:
        """Act on one WatchRequest."""
        kind = request.WhichOneof("choice")
        if kind == "create_request":
            self._create(request.create_request)
        elif kind == "cancel_request":
            watch_id = request.cancel_request.watch_id
            subscription = self._watches.pop(watch_id, None)
            if subscription is not None:
                self._shared_state.unsubscribe(subscription)
                self._put(watch_id=watch_id, canceled=True)
        elif kind == "progress_request":  # everything up to this revision is queued already
            self._put(watch_id=-1)

    def responses(self) -> Iterator[Any]:
        """The WatchResponses to send, until `finish()`."""
        while (response := self._queue.get()) is not None:
            yield response

    def finish(self) -> None:
        """End the stream."""
        self._finished = True
        self._queue.put(None)

    def release(self) -> None:
        """Drop the subscriptions; called when no request can come any more."""
        for subscription in self._watches.values():
            self._shared_state.unsubscribe(subscription)
        self._watches.clear()

    def _create(self, request: Any) -> None:
        watch_id = request.watch_id or next(n for n in range(1, len(self._watches) + 2) if n not in self._watches)
        if watch_id in self._watches:
            self._put(watch_id=-1, created=True, canceled=True, cancel_reason="mvcc: duplicate watch ID provided")
            return
        self._put(watch_id=watch_id, created=True)

        def sink(events: tuple[Event, ...]) -> None:
            self._send(watch_id, events, request.prev_kv, frozenset(request.filters))

        key, end = to_text(request.key) or "\0", to_text(request.range_end)
        try:
            self._watches[watch_id] = self._shared_state.subscribe(key, end, request.start_revision or None, sink)
        except Compacted as error:
            reason = "etcdserver: mvcc: required revision has been compacted"
            self._put(watch_id=watch_id, canceled=True, compact_revision=error.revision, cancel_reason=reason)

    def _send(self, watch_id: int, events: tuple[Event, ...], with_previous: bool, filters: frozenset[int]) -> None:
        """Called under the hub's lock: takes no lock itself."""
        if self._finished:
            return
        if self._queue.qsize() > MAX_QUEUED:
            self.finish()
            return
        hidden = {kind for number, kind in ((_NO_PUT, "put"), (_NO_DELETE, "delete")) if number in filters}
        wire = [event_to_wire(event, with_previous) for event in events if event.kind not in hidden]
        if wire:
            header = new("ResponseHeader", cluster_id=self._shared_state.id, revision=events[-1].kv.mod_revision)
            self._queue.put(new("WatchResponse", header=header, watch_id=watch_id, events=wire))

    def _put(self, **fields: Any) -> None:
        header = new("ResponseHeader", cluster_id=self._shared_state.id, revision=self._shared_state.revision)
        self._queue.put(new("WatchResponse", header=header, **fields))
