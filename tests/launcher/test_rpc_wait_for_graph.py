"""Cycles of waiting calls in what RPC workers say: which are found, and which are none."""

from typing import Any

from resilin.launcher.rpc import wait_for_graph


def worker(id: int, waits: list[dict[str, Any]], runs: list[dict[str, Any]], threads: int = 1) -> dict[str, Any]:
    return {
        "worker": f"w{id}",
        "id": id,
        "host": "127.0.0.1",
        "pid": 100 + id,
        "threads": threads,
        "waits": waits,
        "runs": runs,
    }


def wait(
    to: int, number: int, within: tuple[int, int] | None = None, age_s: float = 9.0, blocks: bool = True
) -> dict[str, Any]:
    return {
        "to": f"w{to}",
        "to_id": to,
        "number": number,
        "function": f"m:f{number}",
        "age_s": age_s,
        "blocks": blocks,
        "within": None if within is None else list(within),
    }


def run(source: int, number: int, thread: bool = True) -> dict[str, Any]:
    found = {"from": f"w{source}", "from_id": source, "number": number, "function": f"m:f{number}", "age_s": 8.0}
    return {**found, "thread": thread}


def names(cycle: list[dict[str, Any]]) -> list[str]:
    return [f"{each['worker']}>{each['waits_for']}" for each in cycle]


def stuck_pair(threads: int = 1) -> list[dict[str, Any]]:
    """Each runs a call of the other in its only thread, and waits for the other within it."""
    return [
        worker(0, [wait(1, 1), wait(1, 2, (1, 1))], [run(1, 1)], threads),
        worker(1, [wait(0, 1), wait(0, 2, (0, 1))], [run(0, 1)], threads),
    ]


def test_two_workers_without_threads_wait_for_one_another() -> None:
    assert sorted(names(wait_for_graph.endless(stuck_pair()))) == ["w0>w1", "w1>w0"]


def test_one_more_thread_ends_it() -> None:
    assert wait_for_graph.endless(stuck_pair(threads=2)) == []


def test_three_workers_in_a_cycle() -> None:
    told = [worker(n, [wait((n + 1) % 3, 5, (9, n))], [{**run(9, n), "from": "w9"}]) for n in range(3)]
    assert sorted(names(wait_for_graph.endless(told))) == ["w0>w1", "w1>w2", "w2>w0"]


def test_who_computes_ends_the_wait() -> None:
    told = stuck_pair()
    told[1]["waits"] = told[1]["waits"][:1]  # it runs, and waits for nobody
    assert wait_for_graph.endless(told) == []


def test_a_future_that_nobody_waits_for_holds_no_thread() -> None:
    told = stuck_pair()
    told[1]["waits"][1]["blocks"] = False
    assert wait_for_graph.endless(told) == []


def test_who_has_not_answered_may_end() -> None:
    told = stuck_pair()
    told[1] = {"worker": "w1", "id": 1, "error": "did not answer"}
    assert wait_for_graph.endless(told) == []


def test_a_call_whose_future_is_awaited_needs_no_thread() -> None:
    told = stuck_pair()
    told[1]["runs"][0]["thread"] = False
    assert wait_for_graph.endless(told) == []


def test_a_worker_that_waits_for_itself() -> None:
    told = [worker(0, [wait(0, 1), wait(0, 2, (0, 1))], [run(0, 1)])]
    assert names(wait_for_graph.endless(told)) == ["w0>w0"]


def test_what_waits_for_a_circle_is_not_in_it() -> None:
    told = [*stuck_pair(), worker(2, [wait(0, 7, age_s=99.0)], [])]
    assert "w2" not in " ".join(names(wait_for_graph.endless(told)))


def test_nothing_waits() -> None:
    assert wait_for_graph.endless([]) == []
    assert wait_for_graph.endless([worker(0, [], [])]) == []
    assert wait_for_graph.coming_back([worker(0, [], [])], 0.0) == []


def test_a_chain_that_comes_back_is_told_once_it_is_old() -> None:
    told = [worker(0, [wait(1, 1)], [run(1, 2)], 4), worker(1, [wait(0, 2, (0, 1))], [run(0, 1)], 4)]
    assert [names(each) for each in wait_for_graph.coming_back(told, 5.0)] == [["w0>w1", "w1>w0"]]
    assert wait_for_graph.coming_back(told, 10.0) == []
    assert wait_for_graph.endless(told) == []


def test_a_chain_that_does_not_come_back_is_none() -> None:
    told = [
        worker(0, [wait(1, 1)], [], 4),
        worker(1, [wait(2, 2, (0, 1))], [run(0, 1)], 4),
        worker(2, [], [run(1, 2)], 4),
    ]
    assert wait_for_graph.coming_back(told, 0.0) == []


def test_circles_in_words() -> None:
    said = wait_for_graph.sentence(
        "a cycle", wait_for_graph.endless([worker(0, [wait(0, 1), wait(0, 2, (0, 1))], [run(0, 1)])])
    )
    assert said == "a cycle: w0 waits for m:f2 at w0 (9.0 s, not begun: all its threads wait)"
