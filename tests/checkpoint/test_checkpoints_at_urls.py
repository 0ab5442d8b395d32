"""Checkpoints in a bucket, written and read by several ranks, while the server fails now and then, or altogether."""

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import Sliced
from resilin.checkpoint.open_storage import open_storage
from resilin.checkpoint.remote import FsspecStorage
from resilin.errors import CheckpointError, StorageError, StorageMissing, UsageError
from resilin.launcher import exit_codes, main
from resilin.testing.ranks import run_ranks

WHOLE = resilin.arange(1000).reshape(10, 100)


def save(rank, path, options, world_size=2, step=1):
    half = WHOLE.numel() // world_size
    mine = WHOLE.reshape(-1)[rank * half : (rank + 1) * half].clone()
    state = {"cut": Sliced(WHOLE.shape, WHOLE.dtype, rank * half, mine), "all": WHOLE.float(), "epoch": 3}
    return checkpoint.save(path, state, step=step, options=options)


def load(rank, path, options):
    return checkpoint.load(path, options=options)


@pytest.mark.parametrize("failing", [False, True])
def test_two_ranks_save_and_one_or_three_load(server, failing):
    path = f"s3://models/run-{failing}"
    if failing:
        server.fail(503, times=2, method="PUT", skip=1)
        server.fail(500, times=1, method="GET", skip=2)
    outcome = run_ranks(2, save, path, server.options, timeout_s=60)
    assert not outcome.errors
    assert set(outcome.values.values()) == {f"{path}/step-1"}
    for world_size in (1, 3):
        outcome = run_ranks(world_size, load, path, server.options, timeout_s=60)
        assert not outcome.errors
        for tree in outcome.values.values():
            assert resilin.equal(tree["cut"], WHOLE)
            assert resilin.equal(tree["all"], WHOLE.float())
            assert tree["epoch"] == 3
    server.heal()
    assert checkpoint.verify(path, options=server.options) == []


def test_a_server_that_refuses_a_rank_ends_the_save_on_all_and_the_last_checkpoint_stays(server):
    path = "s3://models/kept"
    assert not run_ranks(2, save, path, server.options, timeout_s=60).errors
    server.fail(403, times=1000, method="PUT", path="data-00001")
    outcome = run_ranks(2, save, path, server.options, timeout_s=60, step=2)
    server.heal()
    assert set(outcome.errors) == {0, 1}
    assert isinstance(outcome.errors[1], StorageError)
    assert isinstance(outcome.errors[0], CheckpointError)
    assert "rank 1" in str(outcome.errors[0])
    assert checkpoint.latest(FsspecStorage(path, server.options)) == f"{path}/step-1"
    assert resilin.equal(checkpoint.load(path, options=server.options)["cut"], WHOLE)


def test_the_commands_find_a_bucket_by_the_environment(server, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert not run_ranks(2, save, "s3://models/commands", None, timeout_s=60).errors
    assert main.main(["checkpoint", "ls", "s3://models/commands"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["step-1", "complete"]
    assert main.main(["checkpoint", "verify", "s3://models/commands"]) == 0
    assert "s3://models/commands/step-1: intact" in capsys.readouterr().out


def test_the_root_of_a_storage_keeps_its_url():
    storage = open_storage("memory://")
    assert storage.root == "memory://"
    assert storage.full("a/b") == "memory://a/b"
    assert open_storage("memory://x/").full("a") == "memory://x/a"


def test_a_url_within_another_that_is_not_there_is_told():
    with pytest.raises(StorageError, match="zip://a::memory://nothing cannot be opened"):
        checkpoint.latest("zip://a::memory://nothing")


def test_slashes_between_a_bucket_and_a_name_are_one(server):
    """As of f"s3://{bucket}/{prefix}/run" with an empty prefix; s3fs cannot list names that begin with a slash."""
    for step in (1, 2):
        made = checkpoint.save("s3://models//slashes", {"n": step}, step=step, keep_last=1, options=server.options)
        assert made == f"s3://models/slashes/step-{step}"
    for path in ("s3://models//slashes", "s3://models///slashes/latest", "s3://models/slashes"):
        assert checkpoint.latest(path, options=server.options) == "s3://models/slashes/step-2"
        assert checkpoint.load(path, options=server.options) == {"n": 2}
    assert [item.name for item in open_storage("s3://models/slashes", server.options).list()] == ["latest", "step-2"]
    assert open_storage("s3://models//", server.options).root == "s3://models"


def test_slashes_within_a_name_stay_as_they_are(server):
    checkpoint.save("s3://models/a//b", {"n": 1}, options=server.options)
    assert checkpoint.load("s3://models/a//b", options=server.options) == {"n": 1}
    assert open_storage("s3://models/a/b", server.options).list() == []


def test_a_bucket_that_is_not_there_is_no_empty_one(server, monkeypatch, capsys):
    """A name that is mistyped when a job is to go on must not have it begin anew."""
    for url in ("s3://modles/run", "s3://modles"):
        for ask in (checkpoint.latest, checkpoint.load, checkpoint.list_checkpoints, checkpoint.verify):
            with pytest.raises(StorageMissing, match=f"{url} cannot be listed: .*bucket does not exist: modles;"):
                ask(url, options=server.options)
    for name in ("hub", "m.safetensors", "model.safetensors.index.json"):
        with pytest.raises(StorageMissing, match="bucket does not exist: modles;"):
            checkpoint.load_safetensors(f"s3://modles/{name}", options=server.options)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for command in (["ls"], ["verify"], ["diff", "s3://modles/run"]):
        assert main.main(["checkpoint", *command, "s3://modles/run"]) == exit_codes.USAGE
        assert "bucket does not exist: modles" in capsys.readouterr().err
    assert checkpoint.latest("s3://models/not-yet", options=server.options) is None
    assert checkpoint.list_checkpoints("s3://models/not-yet", options=server.options) == []
    with pytest.raises(CheckpointError, match="s3://models/not-yet holds no complete checkpoint"):
        checkpoint.load("s3://models/not-yet", options=server.options)


@pytest.mark.parametrize("url", ["s3://", "s3:///", "s3:///run", "simplecache::s3://"])
def test_a_url_without_a_bucket_is_refused_before_anything_is_done(server, capsys, url):
    calls = (
        lambda: checkpoint.save(url, {"t": WHOLE}, options=server.options),
        lambda: checkpoint.save_async(url, {"t": WHOLE}, options=server.options),
        lambda: checkpoint.load(url, options=server.options),
        lambda: checkpoint.list_checkpoints(url, options=server.options),
    )
    for call in calls:
        with pytest.raises(UsageError, match=f"^{url} names no bucket; expected s3://BUCKET or s3://BUCKET/NAME$"):
            call()
    assert main.main(["checkpoint", "ls", url]) == exit_codes.USAGE
    assert f"{url} names no bucket" in capsys.readouterr().err
