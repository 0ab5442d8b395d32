"""The ledger says whether every sample counted once."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin.elastic import ledger
from resilin.elastic.ledger import Entry, Ledger
from resilin.errors import StateError, UsageError


def entries(*sizes: int, epoch: int = 0, step: int = 0, generation: int = 1, rank: int = 0) -> list[Entry]:
    out, position = [], 0
    for size in sizes:
        out.append(Entry(epoch, step, position, size, generation, rank))
        position += size
        step += 1
    return out


def test_what_ranks_append_is_read_back_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "new folder" / "ledger.jsonl")
    first, second = Ledger(path), Ledger(path)
    written = [*entries(4, 4), *entries(4, rank=1)]
    for book, entry in zip((first, second, first), written, strict=True):
        book.append(entry)
    first.close()
    first.close()
    second.close()
    assert ledger.read(path) == written
    with pytest.raises(StateError, match="closed"):
        first.append(written[0])


def test_a_file_that_cannot_be_opened_or_written_is_named_with_its_variable() -> None:
    with pytest.raises(UsageError, match=r"RESILIN_LEDGER=/proc/nope/x cannot be opened.*: No such file or directory"):
        Ledger("/proc/nope/x")
    book = Ledger("/dev/full")
    with pytest.raises(StateError, match=r"/dev/full \(RESILIN_LEDGER\): step 3 cannot be written: No space left"):
        book.append(entries(4, step=3)[0])
    book.close()


def test_a_torn_last_line_is_left_out_and_any_other_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    good = entries(4)[0]
    path.write_bytes(good.to_line() + good.to_line()[:20])
    assert ledger.read(str(path)) == [good]
    path.write_bytes(good.to_line() + b'{"epoch":0}\n')
    with pytest.raises(StateError, match=r"line 2: expected an object with epoch"):
        ledger.read(str(path))
    path.write_bytes(good.to_line() + good.to_line()[:20] + b"\n" + good.to_line())
    found, errors = ledger.sift(str(path))
    assert found == [good, good]
    assert [str(error).partition(": ")[0] for error in errors] == [f"{path}, line 2"]
    path.write_bytes(good.to_line()[:20] + good.to_line())
    found, errors = ledger.sift(str(path))
    assert (found, len(errors)) == ([good], 1), "a full disk took a piece of one line; the next writer's is whole"
    path.write_bytes(good.to_line().replace(b":4", b":4.5"))
    with pytest.raises(StateError, match=r"line 1: expected integers"):
        ledger.read(str(path))


def test_two_epochs_on_two_ranks_verify() -> None:
    lines = [
        *entries(4, 4, 2),
        *entries(4, 4, 2, rank=1),
        *entries(4, 4, 2, epoch=1, step=3),
    ]
    verdict = ledger.verify(lines, 10)
    assert verdict.ok
    assert verdict.epochs == {0: 10, 1: 10}
    assert str(verdict) == "6 steps, 20 samples in 2 epochs: every sample once"


def test_a_step_redone_in_a_later_generation_counts_once() -> None:
    lines = [*entries(4, 4), *entries(4, 4, 2, generation=2)[1:]]
    verdict = ledger.verify(lines, 10)
    assert verdict.ok
    assert verdict.redone == 1


def test_steps_after_the_one_that_a_job_went_on_from_are_given_up() -> None:
    before = entries(4, 4, 4, 4)  # the last two were lost with the job: it was saved after two steps
    other_batches = [Entry(0, 2, 8, 6, 2, 0, after=1), Entry(0, 3, 14, 2, 2, 0, after=2)]
    assert ledger.verify([*before, *other_batches], 16).ok
    assert ledger.verify([*before, other_batches[0]], 16, unfinished_last=True).epochs == {0: 14}
    assert not ledger.verify([*before, other_batches[1]], 16).ok


def test_what_counts_is_what_the_last_state_came_from() -> None:
    """Generation 2 began anew, since all that had state were cut off; one was back, further on, for generation 3."""
    first = [replace(entry, after=1 if entry.step else 0) for entry in entries(4, 4, 4)]
    anew = [Entry(0, 0, 0, 4, 2, 0, after=0), Entry(0, 1, 4, 4, 2, 0, after=2)]
    on = [Entry(0, 3, 12, 4, 3, 1, after=1)]
    verdict = ledger.verify([*first, *anew, *on], 16)
    assert verdict.ok
    assert verdict.redone == 2
    wrong = ledger.verify([*first, *anew, replace(on[0], after=2)], 16)
    given_up = ledger.verify([*first, *anew], 16, unfinished_last=True)  # generation 3 had no step left to commit
    assert (given_up.ok, given_up.steps) == (True, 3)
    assert "step 3 (generation 3) was applied after step 2 of generation 2, which has no line" in str(wrong)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (entries(4, 4, 2)[:1] + entries(4, 4, 2)[2:], r"positions \[4, 8\) lost before step 2"),
        ([*entries(4, 4), Entry(0, 2, 4, 6, 1, 0)], r"positions \[4, 8\) counted twice before step 2"),
        (entries(4, 4), r"covers \[0, 8\), expected \[0, 10\)"),
        (entries(4, 4, 4), r"covers \[0, 12\), expected \[0, 10\)"),
        (entries(10, epoch=1), "epoch 0: no step was committed"),
        ([*entries(10), *entries(10, epoch=1, step=2)], "steps 0 to 2: 1 missing"),
        ([*entries(10), Entry(0, 0, 0, 9, 1, 1)], r"rank 0 applied \[0, 10\) of epoch 0, rank 1 applied \[0, 9\)"),
    ],
)
def test_lost_and_repeated_samples_are_named(lines: list[Entry], said: str) -> None:
    verdict = ledger.verify(lines, 10)
    assert not verdict.ok
    with pytest.raises(StateError, match=said):
        raise StateError(str(verdict))


def test_an_unfinished_last_epoch_is_accepted_on_request_only() -> None:
    lines = [*entries(10), *entries(4, epoch=1, step=1)]
    assert ledger.verify(lines, 10, unfinished_last=True).ok
    assert not ledger.verify(lines, 10).ok


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_any_single_lost_line_is_noticed(sizes: list[int], data: st.DataObject) -> None:
    lines = entries(*sizes)
    assert ledger.verify(lines, sum(sizes)).ok
    lost = data.draw(st.integers(0, len(lines) - 1))
    assert not ledger.verify(lines[:lost] + lines[lost + 1 :], sum(sizes)).ok


def in_order(*sizes: int, seed: int | None = 0, length: int = 12, rank: int = 0) -> list[Entry]:
    return [replace(entry, samples=length, length=length, seed=seed) for entry in entries(*sizes, rank=rank)]


@pytest.mark.parametrize("order", [{"seed": 99}, {"seed": None}, {"length": 13}], ids=str)
def test_an_epoch_that_goes_on_in_another_order_is_not_called_complete(order: dict[str, int]) -> None:
    lines = in_order(4, 4, 4)
    assert ledger.verify(lines).ok
    (problem,) = ledger.verify([*lines[:2], replace(lines[2], **order)]).problems
    assert problem.what == "another order"
    assert "epoch 0: step 2 (generation 1) has another order than step 1 (generation 1): " in problem.text
    assert "before seed 0, 12 of 12 samples" in problem.text


def test_each_epoch_may_have_an_order_of_its_own_and_a_step_given_up_another_one() -> None:
    later = [replace(entry, epoch=1, step=entry.step + 3, seed=99) for entry in in_order(4, 4, 4)]
    assert ledger.verify([*in_order(4, 4, 4), *later]).ok
    given_up = replace(in_order(4, 4)[1], seed=99)
    redone = [replace(entry, generation=2) for entry in in_order(4, 4, 4)[1:]]
    assert ledger.verify([in_order(4)[0], given_up, *redone]).ok


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 99}, "seed 99, 12 of 12 samples"),
        ({"length": 13}, "seed 0, 12 of 13 samples"),
        ({"samples": 8}, "seed 0, 8 of 12 samples"),
    ],
    ids=str,
)
def test_ranks_that_applied_a_step_in_different_orders_disagree(other: dict[str, int], said: str) -> None:
    lines = [*in_order(4, 4, 4), *in_order(4, 4, 4, rank=1)]
    assert ledger.verify(lines).ok
    lines[4] = replace(lines[4], **other)
    (problem,) = ledger.verify(lines).problems
    assert problem.what == "disagreement"
    assert problem.text == (
        "step 1, generation 1: rank 0 applied [4, 8) of epoch 0 (seed 0, 12 of 12 samples), "
        f"rank 1 applied [4, 8) of epoch 0 ({said})"
    )
