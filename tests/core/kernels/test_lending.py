"""Blocks of arenas are lent: what borrowers map stays as it was, whatever this process does with its arrays."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from resilin.core.kernels.common import address_of
from resilin.core.machine import lending, memory

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def arenas() -> Iterator[None]:
    memory.install()
    yield
    gc.collect()


def _lend(array: Any) -> lending.LentPlace | None:
    return lending.lend(array, address_of(array), array.nbytes)


def _shown(place: lending.LentPlace, size: int, closed: Any, *, shared: bool = False, number: int = 1) -> Any:
    arena = lending.own_arena(place.arena)
    return lending.open_window(arena, place.offset, size, shared=shared, closed=closed, number=number)


def test_a_lent_block_is_a_snapshot_and_lent_again_only_where_it_was_not_written() -> None:
    closed = lending.closed_windows()
    array = np.zeros(SIZE, np.uint8)
    place = _lend(array)
    assert place is not None
    window = _shown(place, SIZE, closed)
    assert _lend(array) == place
    array[SIZE // 2] = 1
    assert not window.any()
    assert _lend(array) is None
    assert lending.lend(array, address_of(array), SIZE // 2) == place
    assert lending.lend(array, address_of(array) + SIZE // 2, SIZE // 2) is None
    for _ in range(3):
        lending.end_loan(place)
    lending.end_loan(place)  # one too many does nothing
    assert array[SIZE // 2] == 1
    assert array.sum() == 1


def test_a_read_only_look_is_no_write() -> None:
    closed = lending.closed_windows()
    array = np.arange(SIZE // 8)
    place = _lend(array)
    assert place is not None
    window = _shown(place, SIZE, closed)
    assert window.view(np.int64).sum() == array.sum()
    shown = lending.look_at_window(window, address_of(window), SIZE)
    assert shown == (1, place.offset, False)
    assert _lend(array) == place
    window[5000] += 1
    shown = lending.look_at_window(window, address_of(window), SIZE)
    assert shown is not None
    assert shown.written
    rest = lending.look_at_window(window, address_of(window) + 8192, SIZE - 8192)
    assert rest == (1, place.offset + 8192, False)
    lending.end_loan(place)
    lending.end_loan(place)


def test_only_who_owns_a_block_lends_it() -> None:
    array = np.zeros(SIZE, np.uint8)
    assert _lend(array[10:]) is None
    assert _lend(np.frombuffer(bytearray(SIZE), np.uint8)) is None
    assert lending.lend(array, address_of(array), SIZE + 1) is None
    assert lending.lend(array, address_of(array) - 1, SIZE) is None
    assert lending.lend(array, address_of(array), SIZE // 4 - 1) is None
    assert lending.look_at_window(array, address_of(array), SIZE) is None
    assert memory.locate(array) is not None


def test_what_was_given_is_the_borrowers_until_it_is_looked_at() -> None:
    closed = lending.closed_windows()
    array = np.full(SIZE, 3, np.uint8)
    place = lending.give(address_of(array), SIZE)
    assert place is not None
    first = _shown(place, SIZE, closed, shared=True)
    first[0] = 4
    second = _shown(place, SIZE, closed)
    assert second[0] == 4
    shown = lending.look_at_window(first, address_of(first), SIZE)
    assert shown is not None
    assert not shown.written
    first[0] = 5
    assert second[0] == 4
    assert array[0] == 3
    lending.end_loan(place)


def test_windows_say_when_they_are_closed_and_are_used_again() -> None:
    closed = lending.closed_windows()
    array = np.ones(SIZE, np.uint8)
    place = _lend(array)
    assert place is not None
    arena = lending.own_arena(place.arena)

    def opened(number: int) -> Any:
        return lending.open_window(arena, place.offset, SIZE, shared=False, closed=closed, number=number)

    first, second = opened(1), opened(2)
    addresses = {address_of(first), address_of(second)}
    assert len(addresses) == 2
    view = first[10:20]
    del first
    assert closed.take() == []
    del view
    assert closed.take() == [1]
    assert os.eventfd_read(closed.fd) == 1
    third = opened(3)
    assert {address_of(second), address_of(third)} == addresses
    third[0] = 9
    del third
    fourth = opened(4)
    assert fourth.all()
    assert fourth[0] == 1
    del second, fourth
    assert sorted(closed.take()) == [2, 3, 4]
    lending.end_loan(place)


def test_an_arena_that_is_given_back_has_no_memory_though_a_borrower_keeps_it_open() -> None:
    array = np.ones(96 << 20, np.uint8)
    place = _lend(array)
    assert place is not None
    kept = os.dup(memory.arena_fd(place.arena))
    try:
        assert os.fstat(kept).st_blocks * 512 >= array.nbytes
        lending.end_loan(place)
        del array
        memory.empty_cache()
        with pytest.raises(KeyError):
            memory.arena_fd(place.arena)
        assert os.fstat(kept).st_blocks == 0
    finally:
        os.close(kept)


@pytest.mark.slow
def test_an_arena_with_a_loan_is_not_given_back() -> None:
    closed = lending.closed_windows()
    array = np.ones(96 << 20, np.uint8)
    place = _lend(array)
    assert place is not None
    window = _shown(place, array.nbytes, closed)
    del array
    memory.empty_cache()
    assert memory.arena_size(place.arena) >= window.nbytes
    assert window.all()
    assert np.ones(96 << 20, np.uint8).all()
    assert window.all()
    lending.end_loan(place)


def test_a_freed_block_is_shared_again_for_its_next_owner() -> None:
    array = np.zeros(SIZE, np.uint8)
    address = address_of(array)
    place = _lend(array)
    assert place is not None
    assert memory.locate(array) is None
    assert memory.locate(array[100:200]) is None
    array[:] = 7
    lending.end_loan(place)
    del array
    again = np.zeros(SIZE, np.uint8)
    assert address_of(again) == address
    assert not again.any()
    assert memory.locate(again) == (place.arena, place.offset)
    again[:] = 5
    assert os.pread(memory.arena_fd(place.arena), 1, place.offset) == b"\5"


def test_a_block_can_be_lent_from_the_second_time_on() -> None:
    array = np.zeros(SIZE, np.uint8)
    assert lending.lend(array, address_of(array), SIZE, again=True) is None
    place = lending.lend(array, address_of(array), SIZE, again=True)
    assert place is not None
    lending.end_loan(place)
    del array
    again = np.zeros(SIZE, np.uint8)
    assert lending.lend(again, address_of(again), SIZE, again=True) is None


def test_what_is_lent_again_and_again_is_the_same_in_huge_pages() -> None:
    closed = lending.closed_windows()
    array = np.arange(SIZE)  # 8 MiB: three units of 2 MiB or four
    place = _lend(array)
    assert place is not None
    window = _shown(place, array.nbytes, closed)
    assert _lend(array) == place
    array[SIZE // 2] = -1  # the unit around it is left as it is
    lending.collapse_lent()
    assert (window.view(np.int64) == np.arange(SIZE)).all()
    assert array[SIZE // 2] == -1
    assert _lend(array) is None
    array[-1] = -2
    assert (np.flatnonzero(array != np.arange(SIZE)) == [SIZE // 2, SIZE - 1]).all()
    assert (window.view(np.int64) == np.arange(SIZE)).all()
    lending.collapse_lent()  # once
    for _ in range(2):
        lending.end_loan(place)


def test_neighbours_of_a_lent_block_can_be_located() -> None:
    arrays = [np.zeros(SIZE, np.uint8) for _ in range(3)]
    lent = _lend(arrays[1])
    assert lent is not None
    places = [memory.locate(array) for array in arrays]
    assert [place is None for place in places] == [False, True, False]
    lending.end_loan(lent)


def test_memory_that_peers_may_write_into_is_not_lent_before_it_is_freed() -> None:
    array = np.zeros(SIZE, np.uint8)
    address = address_of(array)
    assert memory.locate(array[5000:5001]) is not None
    assert _lend(array) is None
    assert memory.locate(array) is not None
    del array
    again = np.zeros(SIZE, np.uint8)
    assert address_of(again) == address
    place = _lend(again)
    assert place is not None
    lending.end_loan(place)


def test_many_blocks_are_lent_and_beyond_a_bound_none() -> None:
    arrays = [np.zeros(4096, np.uint8) for _ in range(8300)]
    places = [_lend(array) for array in arrays]
    assert places[-1] is None
    assert sum(place is not None for place in places) >= 8000
    for place in places:
        if place is not None:
            lending.end_loan(place)
    del arrays
    array = np.zeros(4096, np.uint8)
    place = _lend(array)
    assert place is not None
    lending.end_loan(place)
