"""Timer measures what it is given, often enough, and refuses what it cannot measure."""

import threading
from types import SimpleNamespace

import pytest

import resilin
from resilin.errors import UsageError
from resilin.utils.benchmark import Language, Measurement, TaskSpec, Timer, select_unit, set_torch_threads, timer


class FakeLoop:
    """Takes the place of timeit.Timer: a loop costs 1 us, and a run what the list says, its last again and again."""

    runs_s = (1e-3,)

    def __init__(self, stmt, setup, timer, globals):
        self.numbers, self._next = [], list(self.runs_s)

    def timeit(self, number):
        self.numbers.append(number)
        run_s = self._next[0]
        if len(self._next) > 1 and number:
            del self._next[0]
        return 1e-6 + number * run_s


def fake_timer(*runs_s):
    loop = type("Loop", (FakeLoop,), {"runs_s": runs_s})
    return type("FakeTimer", (Timer,), {"_timer_cls": loop})("pass")


def test_timeit_runs_a_hundredth_first_and_gives_one_time():
    ours = fake_timer(2e-3)
    one = ours.timeit(500)
    assert ours._timer.numbers == [5, 500]
    assert one.raw_times == pytest.approx([1.0], rel=1e-3)
    assert one.number_per_run == 500
    assert fake_timer(1e-3).timeit(7).number_per_run == 7


@pytest.mark.parametrize(("run_s", "number"), [(1.0, 1), (1e-2, 1), (1e-3, 10), (1e-6, 10_000), (1e-9, 10_000_000)])
def test_blocks_are_long_enough_for_the_clock(run_s, number):
    assert fake_timer(run_s).blocked_autorange().number_per_run == number


def test_blocked_autorange_measures_until_the_time_is_over():
    seen = []
    one = fake_timer(0.01).blocked_autorange(
        callback=lambda number, time: seen.append((number, time)), min_run_time=0.5
    )
    assert one.number_per_run == 1
    assert 0.5 <= sum(one.raw_times) < 0.52
    assert seen == [(1, time) for time in one.raw_times]
    assert len(fake_timer(1.0).blocked_autorange(min_run_time=0.1).raw_times) == 1


def test_adaptive_autorange_goes_on_while_times_differ():
    steady = fake_timer(1.0).adaptive_autorange()
    assert len(steady.times) == 4
    unsteady = fake_timer(1.0, *[1.0, 3.0] * 3, 2.0).adaptive_autorange(threshold=0.01, max_run_time=100)
    assert len(unsteady.times) > 8
    assert unsteady.meets_confidence(0.01)
    assert not Measurement(1, unsteady.raw_times[:-1], unsteady.task_spec).meets_confidence(0.01)


def test_adaptive_autorange_ends_at_its_longest_time_and_not_before_its_shortest():
    never_steady = fake_timer(1.0, *[1.0, 3.0] * 50).adaptive_autorange(threshold=1e-9, max_run_time=20)
    assert 20 < sum(never_steady.raw_times) <= 23.1
    patient = fake_timer(1.0).adaptive_autorange(min_run_time=8.5)
    assert len(patient.times) == 9


def test_a_statement_sees_its_globals_setup_and_resilin():
    x, made = resilin.ones(3), []
    ours = Timer(
        """
        made.append(torch.add(x, y))
        assert resilin is torch
        """,
        setup="y = resilin.ones(3)",
        globals={"x": x, "made": made},
    )
    assert ours.timeit(3).stmt == "made.append(torch.add(x, y))\nassert resilin is torch"
    assert len(made) == 5
    assert made[0].tolist() == [2, 2, 2]


def test_the_callers_globals_stay_as_they_are():
    given = {"n": 1}
    Timer("n += 1", setup="global n", globals=given).timeit(10)
    assert given == {"n": 1}


def test_an_error_of_the_statement_is_raised_and_threads_are_as_before():
    before = resilin.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        Timer("1 / 0", num_threads=before + 1).blocked_autorange()
    assert resilin.get_num_threads() == before


@pytest.mark.parametrize("method", ["timeit", "blocked_autorange", "adaptive_autorange"])
def test_a_statement_runs_on_its_number_of_threads(method):
    seen = set()
    ours = Timer("seen.add(resilin.get_num_threads())", globals={"seen": seen}, num_threads=3)
    arguments = {"timeit": {"number": 10}, "adaptive_autorange": {"max_run_time": 0.02}}
    one = getattr(ours, method)(**arguments.get(method, {"min_run_time": 0.01}))
    assert seen == {3}
    assert one.num_threads == 3
    assert "3 threads" in repr(one)


def test_threads_are_set_within_a_block_only():
    before = resilin.get_num_threads()
    with set_torch_threads(before + 2):
        assert resilin.get_num_threads() == before + 2
    assert resilin.get_num_threads() == before


def test_sleep_is_measured():
    pause = threading.Event()
    one = Timer("pause.wait(0.01)", globals={"pause": pause}).blocked_autorange(min_run_time=0.05)
    assert one.median >= 0.01


def test_the_timer_waits_for_a_device_that_is_used(monkeypatch):
    waited = []
    backend = SimpleNamespace(current=lambda: 1, synchronize=waited.append)
    monkeypatch.setattr("resilin.core.device.device_types", lambda: ("cpu", "cuda"))
    monkeypatch.setattr("resilin.core.device.backend_of", lambda kind: backend)
    assert timer() <= timer()
    assert waited == [1, 1]


@pytest.mark.parametrize("language", [Language.PYTHON, "py", "python"])
def test_names_of_python(language):
    assert Timer("pass", language=language).timeit(1).stmt == "pass"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"language": "c++"}, NotImplementedError, r"C\+\+ is not measured.*expected Python"),
        ({"language": Language.CPP}, NotImplementedError, r"C\+\+ is not measured"),
        ({"language": "rust"}, UsageError, "language 'rust' is unknown"),
        ({"global_setup": "#include <vector>"}, UsageError, "write it into setup"),
        ({"stmt": len}, ValueError, "expected a text as stmt, got .*builtin_function"),
        ({"stmt": "1 +"}, SyntaxError, "invalid syntax"),
    ],
    ids=["c++", "CPP", "rust", "global_setup", "callable", "syntax"],
)
def test_what_cannot_be_measured_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        Timer(**{"stmt": "pass", **options})


@pytest.mark.parametrize("number", [0, -1])
def test_no_runs_are_no_measurement(number):
    with pytest.raises(UsageError, match=f"at least 1, got {number}"):
        Timer("pass").timeit(number)


@pytest.mark.parametrize("method", ["repeat", "autorange"])
def test_methods_of_timeit_that_have_no_meaning_name_what_has(method):
    with pytest.raises(NotImplementedError, match="blocked_autorange"):
        getattr(Timer("pass"), method)()


def test_instructions_are_not_counted():
    with pytest.raises(NotImplementedError, match=r"blocked_autorange.* measures time"):
        Timer("pass").collect_callgrind(number=10)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_what_is_no_time_has_no_unit(seconds):
    with pytest.raises(UsageError, match="more than 0 s"):
        select_unit(seconds)


@pytest.mark.parametrize("times", [[], [1.0, 0.0]])
def test_a_measurement_without_times_says_so(times):
    with pytest.raises(UsageError, match="Measurement of 'f': expected times"):
        Measurement(1, times, TaskSpec("f", "pass")).median  # noqa: B018
