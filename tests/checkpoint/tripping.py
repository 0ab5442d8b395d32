"""Faults at the system calls of local storage: the k-th one of a thread fails, or its process dies there."""

import os
import threading

NAMES = ("open", "write", "fsync", "replace", "link", "unlink", "mkdir", "rmdir")
"""Calls that change what is on the disk, or open it to be changed. A write that is struck has written half before."""


class Crash(BaseException):
    """Ends a save as if its process had died there: nothing of the library catches it."""


class TrippedOs:
    """Stands for `os` in a module; calls `strike` at call number `at` (from 0) of the threads that `watch`.

    calls: what has been called so far, by the threads that are watched.
    """

    def __init__(self, at, strike):
        self.at, self.strike, self.calls = at, strike, []
        self._here = threading.local()

    def watch(self):
        self._here.watched = True

    def __getattr__(self, name):
        value = getattr(os, name)
        if name not in NAMES:
            return value

        def call(*args, **kwargs):
            if not getattr(self._here, "watched", False):
                return value(*args, **kwargs)
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                if name == "write" and len(args[1]) > 1:
                    value(args[0], memoryview(args[1]).cast("B")[: len(args[1]) // 2])
                self.strike()
            return value(*args, **kwargs)

        return call


def crash():
    raise Crash


def fails_with(number):
    def strike():
        raise OSError(number, os.strerror(number))

    return strike
