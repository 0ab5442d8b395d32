"""Every storage keeps the contract: a folder, fsspec's memory, a bucket on a server that speaks S3's protocol."""

import itertools
import re
from pathlib import Path

import pytest

from resilin import checkpoint
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.open_storage import open_file, open_parent, open_storage
from resilin.checkpoint.remote import FsspecStorage
from resilin.checkpoint.storage import Reading, leftover
from resilin.errors import UsageError
from resilin.testing.check_storage import StorageChecks

NUMBERS = itertools.count()


class TestLocalStorage(StorageChecks):
    @pytest.fixture
    def storage(self, tmp_path):
        return LocalStorage(tmp_path / "not" / "yet")


class TestMemoryStorage(StorageChecks):
    @pytest.fixture
    def storage(self):
        storage = open_storage(f"memory://run-{next(NUMBERS)}")
        yield storage
        storage.delete_tree("")


class TestS3Storage(StorageChecks):
    @pytest.fixture
    def storage(self, server):
        return open_storage(f"s3://models/run-{next(NUMBERS)}", server.options)


class TestS3BucketItself(StorageChecks):
    @pytest.fixture
    def storage(self, server):
        server.make_bucket(f"bucket-{(number := next(NUMBERS))}")
        return open_storage(f"s3://bucket-{number}", server.options)


def test_paths_urls_and_storages_open(tmp_path):
    assert open_storage(tmp_path).root == str(tmp_path)
    assert open_storage(f"file://{tmp_path}/a%20b").root == f"{tmp_path}/a b"
    storage = open_storage("memory://x")
    assert isinstance(storage, FsspecStorage)
    assert open_storage(storage) is storage
    assert repr(storage) == "<FsspecStorage memory://x>"


def test_a_file_is_opened_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"123")
    for path in ("a.bin", tmp_path / "a.bin", f"file://{tmp_path}/a.bin"):
        source = open_file(path)
        assert (source.name, source.size, source.read(1, 3)) == (f"{tmp_path}/a.bin", 3, b"23")
    storage, name = open_parent("memory://x/y/z.bin")
    assert (storage.root, name) == ("memory://x/y", "z.bin")
    storage.write(name, b"12")
    assert Reading(storage, name).size == 2
    storage.delete_tree("")


@pytest.mark.parametrize("url", ["nonsense://x", "gs://bucket/x"])
def test_an_url_of_an_unknown_kind_or_without_its_package_is_refused(url):
    with pytest.raises(UsageError, match=f"{url} cannot be opened: .*(rotocol|nstall)"):
        open_storage(url)


@pytest.mark.parametrize(
    ("path", "write"),
    [
        (Path("s3://bucket/run"), "'s3://bucket/run'"),
        ("s3:/bucket", "'s3://bucket'"),
        ("s3:", "'s3://BUCKET/NAME'"),
        ("S3:/", "'s3://BUCKET/NAME'"),
        (Path("file:///tmp/run"), "'file:///tmp/run'"),
        ("memory:/x", "'memory://x'"),
    ],
)
@pytest.mark.parametrize("call", [open_storage, open_file, lambda path: checkpoint.save(path, {})])
def test_an_url_that_lost_a_slash_is_no_folder(path, write, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"is no path and no URL: write {write} as text.*'\./{path}'"):
        call(path)
    assert not list(tmp_path.iterdir())


def test_a_folder_may_be_called_like_the_start_of_an_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("./s3:/x").root == str(tmp_path / "s3:" / "x")
    assert open_storage("at-10:30/x").root == str(tmp_path / "at-10:30" / "x")


@pytest.mark.parametrize("url", ["://x", "1://x", " s3://b", "a/b://x"])
def test_an_url_names_the_kind_of_its_storage(url):
    with pytest.raises(UsageError, match=rf"{url}' names no kind of storage before '://'; write 's3://BUCKET/NAME'"):
        open_storage(url)


def test_the_kind_of_a_storage_may_be_in_capitals(tmp_path):
    assert open_storage("MEMORY://Run").root == "memory://Run"
    assert open_storage(f"File://{tmp_path}/Run").root == f"{tmp_path}/Run"
    assert open_parent("Memory://Run/X")[0].root == "memory://Run"


@pytest.mark.parametrize("bucket", ["?", "a?b", "#", "a b", "a*"])
def test_what_cannot_be_the_name_of_a_bucket_is_refused(bucket):
    with pytest.raises(UsageError, match=rf"^s3://{re.escape(bucket)}/run names the bucket '{re.escape(bucket)}'; exp"):
        open_storage(f"s3://{bucket}/run")


def test_without_fsspec_an_url_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install 'resilin\[s3\]'"):
        open_storage("s3://bucket/x")


def test_a_folder_takes_no_options(tmp_path):
    with pytest.raises(UsageError, match="takes no options, got key"):
        open_storage(tmp_path, {"key": "x"})


@pytest.mark.parametrize("path", ["s3://bucket", "/", "memory://"])
def test_what_has_no_name_is_no_file(path):
    with pytest.raises(UsageError, match="is no file"):
        open_parent(path)


def test_leftovers_tell_what_they_would_have_been():
    assert leftover("rank-0.safetensors.partial-0123456789ab") == "rank-0.safetensors"
    assert leftover("rank-0.safetensors") is None
    assert leftover(".partial-x") is None
