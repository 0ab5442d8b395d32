"""Timer: how long a statement takes, measured often enough to say how sure that is."""

from __future__ import annotations

import enum
import statistics
import textwrap
import timeit
from collections.abc import Callable
from typing import Any, NoReturn

import resilin
from resilin.core import device as devices
from resilin.errors import UsageError
from resilin.utils.benchmark.utils import common
from resilin.utils.benchmark.utils.common import Measurement, TaskSpec

__all__ = ["Language", "Timer", "timer"]

LEAST_S = 1e-9  # a loop is never shorter, so that nothing is divided by zero
MOST_RUNS = 2**31 - 1  # of a block: what PyTorch's C++ loop counts to
ENOUGH_TIMES = 3  # from more on, `adaptive_autorange` believes an interquartile range
WARM_UP_S = 0.05  # for which `adaptive_autorange` chooses its block


def timer() -> float:
    """Return the time in seconds, when all that is queued on a device in use is done."""
    if "cuda" in devices.device_types():  # only once it has been used: looking for one would load its library
        backend = devices.backend_of("cuda")
        backend.synchronize(backend.current())
    return timeit.default_timer()


class Language(enum.Enum):
    """In what a statement is written. There is Python; resilin compiles no C++ at run time."""

    PYTHON = 0
    CPP = 1


class Timer:
    """Measures how long `stmt` takes.

    As timeit.Timer, which does the loop, and beyond it: the statement runs before it is measured, on `num_threads`
    threads of the kernels (one by default, as a measure of the work itself); devices are waited for; and results are
    many measurements, of which the median and the spread are shown.

    Args:
        stmt, setup: texts, run as by timeit. They see `globals`, and resilin as `resilin` and as `torch`.
        global_setup: for C++; refused.
        timer: gives the time in seconds.
        globals: what the statement may name; copied.
        label, sub_label, description, env: what is measured, in words: `Compare` makes a table of each label, a row
            of each sub-label and a column of each description. Measurements of another `env` are another task.
        num_threads: how many threads the kernels use.
        language: Python; C++ is refused.

    Raises:
        UsageError (a ValueError): `stmt` is no text, or the language is unknown.
        NotImplementedError: the language is C++.
    """

    _timer_cls: type[Any] = timeit.Timer  # a subclass may replace what runs the loop

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Language | str = Language.PYTHON,
    ) -> None:
        if not isinstance(stmt, str):
            raise UsageError(f"Timer: expected a text as stmt, got {type(stmt)}: put the callable into globals")
        _check_language(language, global_setup)
        stmt, setup = _without_margin(stmt), _without_margin(setup)
        self._globals = {"resilin": resilin, "torch": resilin, **(globals or {})}
        self._timer = self._timer_cls(stmt=stmt, setup=setup, timer=timer, globals=self._globals)
        self._task_spec = TaskSpec(
            stmt=stmt,
            setup=setup,
            label=label,
            sub_label=sub_label,
            description=description,
            env=env,
            num_threads=num_threads,
        )

    def timeit(self, number: int = 1000000) -> Measurement:
        """Run the statement `number` times after a hundredth as many (2 at least) that do not count.

        Returns a Measurement with one time. Raises UsageError (a ValueError) for a number below 1.
        """
        if number < 1:
            raise UsageError(f"Timer.timeit: expected a number of runs of at least 1, got {number}")
        with common.set_torch_threads(self._task_spec.num_threads):
            self._run(max(int(number // 100), 2))
            return self._measurement(number, [self._run(number)])

    def blocked_autorange(
        self, callback: Callable[[int, float], NoReturn] | None = None, min_run_time: float = 0.2
    ) -> Measurement:
        """Measure blocks of runs until they have taken `min_run_time` seconds, and one at least.

        A block is so long (a power of ten of runs) that the clock costs a ten-thousandth of it and that there are
        a thousand of them at most; finding it out is the warm-up. `callback(number_per_run, seconds)` is called after
        each block.
        """
        with common.set_torch_threads(self._task_spec.num_threads):
            number = self._block(min_run_time)
            times: list[float] = []
            while not times or sum(times) < min_run_time:
                self._measure(number, times, callback)
        return self._measurement(number, times)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], NoReturn] | None = None,
    ) -> Measurement:
        """Measure blocks of runs until their interquartile range is less than `threshold` of their median.

        There are at least four blocks, which take `min_run_time` seconds at least; after `max_run_time` seconds it
        ends in any case (0 or None: it does not). `callback` is that of `blocked_autorange`.
        """
        with common.set_torch_threads(self._task_spec.num_threads):
            number = self._block(WARM_UP_S)
            times: list[float] = []
            while not self._is_sure(number, times, threshold) or sum(times) < min_run_time:
                self._measure(number, times, callback)
                if max_run_time and sum(times) > max_run_time:
                    break
        return self._measurement(number, times)

    def repeat(self, repeat: int = -1, number: int = -1) -> None:
        """Refuse: `blocked_autorange` repeats. NotImplementedError."""
        raise NotImplementedError("Timer.repeat: there is none, blocked_autorange() repeats and chooses how often")

    def autorange(self, callback: Callable[[int, float], NoReturn] | None = None) -> None:
        """Refuse: `blocked_autorange` chooses the number of runs. NotImplementedError."""
        raise NotImplementedError("Timer.autorange: there is none, blocked_autorange() chooses the number of runs")

    def collect_callgrind(
        self,
        number: int = 100,
        *,
        repeats: int | None = None,
        collect_baseline: bool = True,
        retain_out_file: bool = False,
    ) -> NoReturn:
        """Refuse: NotImplementedError. Valgrind's counts of instructions are not collected."""
        raise NotImplementedError(
            "Timer.collect_callgrind: resilin does not run Valgrind; blocked_autorange() measures time, and "
            "`perf stat -e instructions:u python PROGRAM` counts the instructions of a whole program"
        )

    def _run(self, number: int) -> float:
        return max(float(self._timer.timeit(number)), LEAST_S)

    def _measure(self, number: int, times: list[float], callback: Callable[[int, float], Any] | None) -> None:
        times.append(self._run(number))
        if callback is not None:
            callback(number, times[-1])

    def _measurement(self, number: int, times: list[float]) -> Measurement:
        return Measurement(number_per_run=number, raw_times=times, task_spec=self._task_spec)

    def _is_sure(self, number: int, times: list[float], threshold: float) -> bool:
        return len(times) > ENOUGH_TIMES and self._measurement(number, times).meets_confidence(threshold)

    def _block(self, min_run_time: float) -> int:
        """How many runs make a block."""
        overhead = statistics.median(self._run(0) for _ in range(5))
        number = 1
        while True:
            taken = self._run(number)
            is_long = overhead / taken <= 1e-4 and taken >= min_run_time / 1000
            if is_long or taken > min_run_time or number * 10 > MOST_RUNS:
                return number
            number *= 10


def _check_language(language: Language | str, global_setup: str) -> None:
    if language in (Language.CPP, "cpp", "c++"):
        raise NotImplementedError("Timer: C++ is not measured, resilin compiles nothing at run time; expected Python")
    if language not in (Language.PYTHON, "py", "python"):
        raise UsageError(f"Timer: language {language!r} is unknown, expected Language.PYTHON, 'py' or 'python'")
    if global_setup:
        raise UsageError(f"Timer: global_setup is for C++, got {global_setup!r}: write it into setup")


def _without_margin(text: str) -> str:
    """A block of code without what it was indented by, and without empty lines at its ends."""
    return textwrap.dedent(text).removeprefix("\n").rstrip()
