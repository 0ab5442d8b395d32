"""The contract of `checkpoint.storage.Storage` as tests. Inherit, and give a fixture `storage`: an empty one."""

from __future__ import annotations

import threading

import pytest

from resilin.checkpoint.storage import Storage, leftover
from resilin.errors import CorruptFile, StorageExists, StorageMissing, UsageError

BYTES = bytes(range(256)) * 40


class StorageChecks:
    """What every storage promises."""

    def test_a_file_comes_back_whole_and_in_ranges(self, storage: Storage) -> None:
        with storage.writing("a/b/c.bin") as file:
            file.write(BYTES[:1000])
            file.write(memoryview(BYTES)[1000:])
        assert storage.read("a/b/c.bin") == BYTES
        assert storage.read("a/b/c.bin", 300, 1300) == BYTES[300:1300]
        assert storage.read("a/b/c.bin", 10_000) == BYTES[10_000:]
        assert storage.read("a/b/c.bin", 77, 77) == b""
        buffer = bytearray(500)
        storage.read_into("a/b/c.bin", 123, memoryview(buffer))
        assert buffer == BYTES[123:623]
        assert storage.size("a/b/c.bin") == len(BYTES)
        assert storage.exists("a/b/c.bin")

    def test_an_empty_file_is_a_file(self, storage: Storage) -> None:
        storage.write("empty", b"")
        assert storage.size("empty") == 0
        assert storage.read("empty") == b""
        assert [item.name for item in storage.list()] == ["empty"]

    def test_writing_replaces_what_was_there(self, storage: Storage) -> None:
        storage.write("a", b"old and longer")
        storage.write("a", b"new")
        assert storage.read("a") == b"new"

    def test_a_version_is_another_one_when_the_file_is_replaced(self, storage: Storage) -> None:
        storage.write("x/a", b"old")
        before = storage.version("x/a")
        storage.write("x/b", b"other")
        assert storage.version("x/a") == before
        storage.write("x/a", b"new")
        assert storage.version("x/a") != before
        storage.delete("x/a")
        with pytest.raises(StorageMissing):
            storage.version("x/a")

    def test_a_writer_that_raises_leaves_what_was_there_and_nothing_else(self, storage: Storage) -> None:
        storage.write("x/a", b"old")

        def fail(name: str) -> None:
            with storage.writing(name) as file:
                file.write(BYTES)
                raise KeyError(name)

        for name in ("x/a", "x/new"):
            with pytest.raises(KeyError):
                fail(name)
        assert storage.read("x/a") == b"old"
        assert [item.name for item in storage.list("x")] == ["a"]

    def test_a_file_has_its_name_only_when_it_is_complete(self, storage: Storage) -> None:
        with storage.writing("x/a") as file:
            file.write(BYTES)
            assert not storage.exists("x/a")
            assert [leftover(item.name) for item in storage.list("x")] in ([], ["a"])
        assert storage.exists("x/a")

    def test_create_succeeds_once(self, storage: Storage) -> None:
        storage.create("x/lock", b"first")
        with pytest.raises(StorageExists, match="x/lock is there already"):
            storage.create("x/lock", b"second")
        assert storage.read("x/lock") == b"first"

    def test_of_many_that_create_at_once_one_succeeds(self, storage: Storage) -> None:
        outcomes: list[int | None] = []
        together = threading.Barrier(6)

        def create(number: int) -> None:
            together.wait(timeout=30)
            try:
                storage.create("lock", str(number).encode())
                outcomes.append(number)
            except StorageExists:
                outcomes.append(None)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        (winner,) = [number for number in outcomes if number is not None]
        assert len(outcomes) == 6
        assert storage.read("lock") == str(winner).encode()

    def test_a_listing_has_names_sizes_and_folders(self, storage: Storage) -> None:
        storage.write("run/step-1/a", b"12345")
        storage.write("run/step-1/b/c", b"1")
        storage.write("run/z", b"")
        assert [(item.name, item.size) for item in storage.list("run")] == [("step-1", None), ("z", 0)]
        assert [(item.name, item.is_folder) for item in storage.list("run/step-1")] == [("a", False), ("b", True)]
        assert storage.list("nowhere") == []

    def test_deleting_is_done_once_and_may_be_asked_twice(self, storage: Storage) -> None:
        storage.write("a", b"1")
        storage.write("t/u/v", b"1")
        storage.write("t/w", b"1")
        for _ in range(2):
            storage.delete("a")
            storage.delete_tree("t")
            storage.sync()
            assert storage.list() == [] or not any(storage.list(item.name) for item in storage.list())

    def test_only_a_folder_without_anything_in_it_is_removed(self, storage: Storage) -> None:
        storage.write("t/u", b"1")
        storage.remove_empty("t")
        storage.remove_empty("nowhere")
        assert storage.read("t/u") == b"1"
        storage.delete("t/u")
        storage.remove_empty("t")
        assert storage.list("t") == []
        storage.write("t/u", b"2")
        assert storage.read("t/u") == b"2"

    def test_what_is_not_there_is_said_with_its_full_name(self, storage: Storage) -> None:
        for ask in (storage.read, storage.size, lambda name: storage.read_into(name, 0, memoryview(bytearray(3)))):
            with pytest.raises(StorageMissing, match="no/such") as caught:
                ask("no/such")
            assert caught.value.path == storage.full("no/such")
        assert not storage.exists("no/such")

    def test_a_folder_is_no_file(self, storage: Storage) -> None:
        storage.write("t/u", b"1")
        assert not storage.exists("t")

    def test_reading_beyond_the_end_says_that_the_file_is_cut_short(self, storage: Storage) -> None:
        storage.write("a", b"12345")
        for start, stop in ((0, 6), (4, 9), (5, 6), (7, 9)):
            with pytest.raises(CorruptFile, match=r"a is cut short: bytes up to \d were expected, it has 5"):
                storage.read("a", start, stop)
            with pytest.raises(CorruptFile, match="cut short"):
                storage.read_into("a", start, memoryview(bytearray(stop - start)))

    @pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "a/./b", "a\0b", "..", "a/", "a\\b"])
    def test_names_stay_below_the_root(self, storage: Storage, name: str) -> None:
        for ask in (storage.read, storage.size, storage.delete, storage.delete_tree, storage.list):
            with pytest.raises(UsageError, match="cannot be the name"):
                ask(name)
        with pytest.raises(UsageError, match="cannot be the name"):
            storage.write(name, b"")
        with pytest.raises(UsageError, match="cannot be the name"):
            storage.create(name, b"")
