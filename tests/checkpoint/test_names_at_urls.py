"""Names at URLs are taken as they are written: those of which fsspec would make a pattern reach no other run."""

import itertools

import extent
import pytest
from s3fs import S3FileSystem

import resilin
from resilin import checkpoint
from resilin.checkpoint.open_storage import open_storage
from resilin.errors import UsageError
from resilin.launcher import main

NUMBERS = itertools.count()
# a name, and one that it would match as a pattern
PATTERNS = {
    "a*b": "aXb",
    "*": "run",
    "a?b": "aXb",
    "e[1]": "e1",
    "lr=0.1,wd=[1]": "lr=0.1,wd=1",
    "[!a]": "b",
}
UNUSUAL = ["a b", " a", "a ", "100%", "a%20b", "a#b", "a+b", "a&b=c", "ünïcödé/模型"]
UNUSUAL += ["[", "a]b", "**/x", "{a,b}", "a/../b"]


def at(names, bucket):
    """Each name in fsspec's memory and in a bucket, where a short run has those of `bucket`."""
    return pytest.mark.parametrize(
        ("place", "name"),
        extent.short(
            [(place, name) for place in ("s3", "memory") for name in names],
            of=lambda place, name: place == "memory" or name in bucket,
        ),
        indirect=["place"],
    )


@pytest.fixture
def place(request, server, monkeypatch):
    """An empty folder at a URL, found by the environment."""
    for name, value in (("ENDPOINT_URL", server.url), ("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test")):
        monkeypatch.setenv(f"AWS_{name}", value)
    S3FileSystem.clear_instance_cache()  # they are kept by arguments, which do not tell of another environment
    yield f"{request.param}://models/names-{next(NUMBERS)}"
    S3FileSystem.clear_instance_cache()


def state(number):
    return {"t": resilin.full((3,), float(number)), "n": number}


def names(path):
    return [one.name for one in checkpoint.list_checkpoints(path)]


@at(PATTERNS, bucket=["*", "e[1]"])
def test_a_run_whose_name_is_a_pattern_deletes_its_own_checkpoints_and_no_others(place, name):
    run, neighbour = f"{place}/{name}", f"{place}/{PATTERNS[name]}"
    checkpoint.save(neighbour, state(7), step=1)
    checkpoint.save(run, state(1), step=1)
    assert checkpoint.save(run, state(2), step=2, keep_last=1) == f"{run}/step-2"
    assert names(run) == ["step-2"]
    assert [item.name for item in open_storage(run).list("step-1")] == []
    assert names(neighbour) == ["step-1"]
    assert checkpoint.latest(neighbour) == f"{neighbour}/step-1"
    assert checkpoint.verify(neighbour) == []
    assert checkpoint.load(neighbour)["n"] == 7


@pytest.mark.slow
@at(PATTERNS, bucket=["lr=0.1,wd=[1]"])
def test_a_run_whose_name_is_a_pattern_is_read_and_written_as_any(place, name, capsys):
    run, neighbour = f"{place}/{name}", f"{place}/{PATTERNS[name]}"
    checkpoint.save(neighbour, state(7), step=1)
    checkpoint.save(run, state(2), step=2)
    assert checkpoint.latest(run) == checkpoint.latest(f"{run}/latest") == f"{run}/step-2"
    assert checkpoint.verify(run) == []
    assert checkpoint.load(run)["t"].tolist() == [2.0] * 3
    assert main.main(["checkpoint", "ls", run]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["step-2", "complete"]]
    assert main.main(["checkpoint", "verify", run]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{run}/step-2: intact")
    assert main.main(["checkpoint", "diff", run, run]) == 0
    assert main.main(["checkpoint", "diff", run, neighbour]) == 1
    for target in (f"{place}/{name}.safetensors", f"{place}/{name}-hub", f"{place}/{name}-copy"):
        to = ["--to", "hub"] if target.endswith("-hub") else []
        assert main.main(["checkpoint", "convert", *to, run, target]) == 0
        assert main.main(["checkpoint", "diff", "--key", "t", run, target]) == 0
    assert checkpoint.load_safetensors(f"{place}/{name}.safetensors")["t"].tolist() == [2.0] * 3
    assert names(neighbour) == ["step-1"]


@at(PATTERNS, bucket=["a*b", "a?b", "[!a]"])
def test_a_tree_whose_name_is_a_pattern_is_deleted_alone(place, name):
    storage, other = open_storage(place), PATTERNS[name]
    for folder in (name, other):
        storage.write(f"{folder}/deep/er/file", b"1")
        storage.write(f"{folder}/file", b"1")
        storage.create(f"{folder}/lock", b"1")
    storage.delete_tree(name)
    assert storage.list(name) == []
    assert [item.name for item in storage.list(other)] == ["deep", "file", "lock"]
    assert storage.read(f"{other}/deep/er/file") == b"1"
    storage.delete_tree(other)
    assert storage.list(other) == []


@at(UNUSUAL, bucket=[" a", "a%20b", "ünïcödé/模型", "**/x"])
def test_unusual_names_are_names(place, name):
    run = f"{place}/{name}"
    for step in (1, 2):
        assert checkpoint.save(run, state(step), step=step, keep_last=1) == f"{run}/step-{step}"
    assert names(run) == ["step-2"]
    assert checkpoint.latest(f"{run}/latest") == f"{run}/step-2"
    assert checkpoint.load(run)["n"] == 2
    assert checkpoint.verify(run) == []


@pytest.mark.parametrize("url", ["memory://a::b", "s3://models/a::b/run", "memory://a::"])
def test_a_name_in_which_fsspec_would_see_another_url_is_refused(url, server):
    with pytest.raises(UsageError, match=r"'::' in a name begins another URL"):
        checkpoint.save(url, {"w": resilin.ones(2)}, step=1, options=server.options if url.startswith("s3") else None)


@pytest.mark.parametrize(
    "url", ["dir::memory://models/a*b", "dir://a::memory://models", "simplecache::dir::memory://a"]
)
def test_a_folder_as_a_storage_of_its_own_is_refused_with_what_to_write(url):
    with pytest.raises(UsageError, match=r"'dir::' takes names for patterns.*: write the folder's own URL"):
        checkpoint.save(url, state(1), step=1)


@pytest.mark.parametrize("url", ["s3://models/a?versionId=1", "s3://models/a?versionId=1/run", "s3a://models/a\tb"])
def test_a_name_of_which_s3fs_would_make_another_is_refused(url, server):
    with pytest.raises(UsageError, match="would be taken for another name"):
        checkpoint.save(url, state(1), options=server.options)
