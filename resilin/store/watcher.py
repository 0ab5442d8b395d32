"""Every watch of a client on one stream, followed by one thread; a broken stream resumes where each watch was."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from resilin._base import log
from resilin._base.threads import OwnedThread
from resilin.errors import Compacted, StoreError, StoreTimeout
from resilin.store.base import ErrorCallback, Event, EventsCallback, Watch, prefix_range, to_bytes
from resilin.store.convert import event_from_wire
from resilin.store.messages import new
from resilin.store.transport import BrokenStream, Transport

_log = log.logger("store.client")


class ClientWatch(Watch):
    """One watch; `next_revision` is the first revision it has not seen."""

    def __init__(self, watcher: Watcher, watch_id: int, prefix: str, on_events: EventsCallback) -> None:
        self.id = watch_id
        self.prefix = prefix
        self.next_revision = 0
        self.cluster = 0
        self.on_error: ErrorCallback | None = None
        self.closed = False
        self._on_events = on_events
        self._watcher = watcher

    def create_request(self) -> Any:
        """What makes the server start or resume this watch."""
        key, end = prefix_range(self.prefix)
        request = new(
            "WatchCreateRequest",
            key=to_bytes(key),
            range_end=to_bytes(end),
            start_revision=self.next_revision,
            progress_notify=True,
            prev_kv=True,
            watch_id=self.id,
        )
        return new("WatchRequest", create_request=request)

    def deliver(self, events: Sequence[Event]) -> None:
        """Pass on what has not been seen yet. An exception of the callback ends the watch."""
        fresh = [event for event in events if event.kv.mod_revision >= self.next_revision]
        if not fresh or self.closed:
            return
        self.next_revision = fresh[-1].kv.mod_revision + 1
        try:
            self._on_events(fresh)
        except Exception as error:  # noqa: BLE001 - user code on our thread: goes to its on_error
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the watch and tell its owner why."""
        if self.closed:
            return
        self.close()
        if self.on_error is None:
            log.event(_log, logging.ERROR, "a watch ended", prefix=self.prefix, error=repr(error))
            return
        try:
            self.on_error(error)
        except Exception as failure:  # noqa: BLE001 - user code on our thread: reported, other watches go on
            log.event(_log, logging.ERROR, "an on_error callback failed", prefix=self.prefix, error=repr(failure))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._watcher.forget(self)


class Watcher:
    """Follows the stream. The thread starts with the first watch and ends with `close()`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._watches: dict[int, ClientWatch] = {}  # guarded by _changed
        self._requests: queue.SimpleQueue[Any] | None = None  # guarded by _changed; the open stream's, None: it sends
        self._thread: OwnedThread | None = None  # guarded by _changed
        self._closed = False  # guarded by _changed

    def add(
        self, prefix: str, on_events: EventsCallback, start_revision: int | None, on_error: ErrorCallback | None
    ) -> ClientWatch:
        """Start a watch. Where to start is known or asked for first, so the stream need not be waited for."""
        watch = ClientWatch(self, next(self._ids), prefix, on_events)
        cluster = self._transport.cluster
        if start_revision is None or not cluster:
            key, end = prefix_range(prefix)
            probe = new("RangeRequest", key=to_bytes(key), range_end=to_bytes(end), count_only=True)
            header = self._transport.call("Range", probe, repeatable=True).header
            cluster, start_revision = header.cluster_id, start_revision or header.revision + 1
        watch.on_error, watch.cluster, watch.next_revision = on_error, cluster, start_revision
        with self._changed:
            self._watches[watch.id] = watch
            if self._requests is not None:
                self._requests.put(watch.create_request())
            if self._thread is None:
                self._thread = OwnedThread("store-watch", self._run)
            self._changed.notify_all()
        return watch

    def forget(self, watch: ClientWatch) -> None:
        """Take a closed watch off the stream."""
        with self._changed:
            known = self._watches.pop(watch.id, None) is not None
            if known and self._requests is not None:
                self._requests.put(new("WatchRequest", cancel_request=new("WatchCancelRequest", watch_id=watch.id)))

    def close(self) -> None:
        """End every watch. Call it after the transport was closed, which cuts the stream."""
        with self._changed:
            self._closed = True
            for watch in self._watches.values():
                watch.closed = True
            self._watches.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        attempt = 0
        while (requests := self._await_watches()) is not None:
            try:
                for response in self._transport.stream("Watch", _until_none(requests)):
                    attempt = 0
                    self._handle(response)
            except (BrokenStream, StoreTimeout) as failure:
                log.event(_log, logging.INFO, "the watch stream broke, resuming", error=str(failure))
            except StoreError as final:
                if not self._transport.closed:  # else it says only that its own store is being closed
                    self._fail_all(final)
            finally:
                with self._changed:
                    self._requests = None
                requests.put(None)  # frees the thread that sends
            self._transport.pause(attempt)
            attempt += 1

    def _await_watches(self) -> queue.SimpleQueue[Any] | None:
        """The requests that open a stream, once there is something to watch; None: closed."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._changed:
            while not self._watches and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            for watch in self._watches.values():
                requests.put(watch.create_request())
            self._requests = requests
            return requests

    def _fail_all(self, final: StoreError) -> None:
        with self._changed:
            watches = [] if self._closed else list(self._watches.values())
        for watch in watches:
            watch.fail(final)

    def _handle(self, response: Any) -> None:
        with self._changed:
            watch = self._watches.get(response.watch_id)
        if watch is None:
            return  # closed meanwhile
        if response.header.cluster_id != watch.cluster:
            watch.fail(Compacted("the store was replaced by another one, its history is gone; list again", 0))
        elif response.compact_revision:
            message = f"watch of {watch.prefix!r} from revision {watch.next_revision}: the oldest one still there is "
            watch.fail(Compacted(f"{message}{response.compact_revision}; list again", response.compact_revision))
        elif response.canceled:
            watch.fail(StoreError(f"watch of {watch.prefix!r}: the store ended it: {response.cancel_reason}"))
        elif response.events:
            watch.deliver([event_from_wire(event) for event in response.events])
        elif not response.created:  # progress: everything up to this revision was sent
            watch.next_revision = max(watch.next_revision, response.header.revision + 1)


def _until_none(requests: queue.SimpleQueue[Any]) -> Iterator[Any]:
    return iter(requests.get, None)
