"""Every storage keeps the contract: a folder, fsspec's memory, a bucket on a server that speaks S3's protocol."""

import itertools

import pytest

from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.opening import open_file, open_parent, open_storage
from resilin.checkpoint.remote import FsspecStorage
from resilin.checkpoint.storage import Reading, leftover
from resilin.errors import UsageError
from resilin.testing.check_storage import StorageChecks
from resilin.testing.s3_server import S3Server

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


@pytest.fixture(scope="module")
def server():
    with S3Server() as server:
        server.make_bucket("models")
        yield server


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
