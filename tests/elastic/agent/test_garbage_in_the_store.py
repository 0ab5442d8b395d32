"""Whatever stands in a job's keys: an error names the key, commands say it, and the job goes on."""

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from launches import INPLACE
from test_rendezvous_view import KEYS, generation, node, play

from resilin import store
from resilin.elastic import records
from resilin.elastic.agent import stragglers
from resilin.elastic.records import Closed, Live, Recording, Wanted
from resilin.errors import RendezvousError
from resilin.launcher import main
from resilin.store import MemoryStore
from resilin.store.server import StoreServer
from resilin.testing.patience import PATIENCE_S

ANY = [
    b"",
    b"\xff\xfe\x00garbage",
    b"{",
    b"[]",
    b"null",
    b"17",
    b"1e999",
    b"[" * 100_000,
    b"1" * 5000,
    b"x" * (5 << 20),
    b'{"id": 5}',
    b'{"unknown": 1}',
    b'{"id": "\\ud800"}',
]


def changed(record, **fields):
    """The record with other values in its fields."""
    return json.dumps({**json.loads(records.to_bytes(record)), **fields}).encode()


SLOT = {"index": 0}
STANDING = {"rank": 0, "pid": 1, "doing": "busy", "at": "", "pause": "", "calls": []}


def stalled(**fields):
    """A node's record whose workers stand, as it should not be."""
    return changed(node("a"), stall={"generation": 1, "round": 1, "silent_s": 0.0, "workers": [{**STANDING, **fields}]})


NODES = [
    *(changed(node("a"), **{name: value}) for name in vars(node("a")) for value in ({"a": 1}, [[1]], 1e999)),
    changed(node("a"), id=5),
    changed(node("a"), slots=[{"index": "0"}]),
    changed(node("a"), slots=[{"index": 1}]),
    changed(node("a"), slots=[{**SLOT, "state": "elsewhere"}]),
    changed(node("a"), slots=[{**SLOT, "pid": 1 << 70}]),
    changed(node("a"), slots=[{**SLOT, "missed": ["x"]}]),
    changed(node("a"), slots=[{**SLOT, "limit": True}]),
    changed(node("a"), failure={"step": "three"}),
    changed(node("a"), failure={"unknown": 3}),
    changed(node("a"), address="\ud800"),
    stalled(doing="nothing"),
    stalled(rank="0"),
    stalled(calls=[[1, 2, 3]]),
    stalled(calls=[[99, "g", 1, 1, 0, 2, 3, "all_reduce", "f", [1], "sum", 0]]),
    stalled(calls=[["x"] * 12]),
]
GENERATIONS = [
    *(changed(generation(1), **{name: value}) for name in vars(generation(1)) for value in ({"a": 1}, [[1]], 1e999)),
    changed(generation(1), members=[[5, 0, 1]]),
    changed(generation(1), members=[[-1, 0, 1]]),
    changed(generation(1), members=[[0, -1, 1]]),
    changed(generation(1), kind="other"),
    changed(generation(1), unjoined=[["a"]]),
]
CLOSED = Closed(outcome="succeeded", reason="r")
READERS = {
    "node": (records.node, NODES),
    "generation": (records.generation, GENERATIONS),
    "closed": (
        records.closed,
        [changed(CLOSED, outcome="maybe"), changed(CLOSED, code="1"), changed(CLOSED, failure=[])],
    ),
    "wanted": (
        records.wanted,
        [changed(Wanted(), drained="x"), changed(Wanted(), max_nodes=-1), b'{"min_nodes": null}'],
    ),
    "live": (records.live, [b'{"steps": [[1, 2]], "at": 1}', b'{"steps": [[1, "2", ""]], "at": 1}', b'{"at": "now"}']),
    "recording": (
        records.recording,
        [
            b'{"id": 1, "folder": "/", "seconds": 1, "nbytes": 1}',
            b'{"id": "a", "folder": "/", "seconds": 0, "nbytes": 1}',
            b'{"id": "a", "folder": "/", "seconds": 1e9, "nbytes": 1}',
            b'{"id": "a", "folder": "/", "seconds": 1, "nbytes": -1}',
        ],
    ),
    "leader": (records.leader, [b"a\nb", b"\x1b[31m"]),
    "slow": (
        lambda key, value: stragglers.from_json(key, value, 1),
        [b'{"slow": [{"rank": 1}], "generation": 1}', b'{"slow": 5, "generation": 1}', b'{"slow": []}'],
    ),
    "tempos": (
        lambda key, value: stragglers.tempos_from_json(key, value, 1),
        [
            b'{"ranks": {"x": {}}, "generation": 1}',
            b'{"ranks": {"0": {"own_s": "x"}}, "generation": 1}',
            b'{"ranks": []}',
        ],
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_record_is_an_error_that_names_its_key(kind):
    read, more = READERS[kind]
    known = [b"17", b"1" * 5000, b"[" * 100_000] if kind == "leader" else []  # as good a name as any
    for value in [*(value for value in ANY if value not in known), *more]:
        if kind == "leader" and value[:1] in b"{[nx1" and len(value) <= records.MAX_ID_CHARS and value:
            continue
        with pytest.raises(RendezvousError, match="/resilin/some/key in the store holds") as told:
            read("/resilin/some/key", value)
        assert len(str(told.value)) < 1500


def test_a_key_that_is_no_text_is_named_all_the_same():
    with pytest.raises(RendezvousError) as told:
        records.node("/resilin/job/nodes/\udcff", b"")
    assert "\\udcff" in str(told.value)


def test_records_come_back_as_they_were():
    for record, read in (
        (node("a"), records.node),
        (generation(3), records.generation),
        (CLOSED, records.closed),
        (Wanted(min_nodes=1, max_nodes=2, drained=("x",)), records.wanted),
        (Live(steps=((0, 1, "x"),), at=1), records.live),
        (Live(steps=(), at=1, recording="a", recorded=((0, 47, "recording", "/x"),)), records.live),
        (Recording(id="a", folder="/x", seconds=2.5, nbytes=1 << 20), records.recording),
    ):
        assert read("k", records.to_bytes(record)) == record


ROSTERS = [*ANY, zlib.compress(b"x"), zlib.compress(b"1 2 {}"), zlib.compress(b"a b c"), zlib.compress(bytes(65 << 20))]


def test_the_last_roster_stands_and_the_leader_writes_another_one():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        for value in ROSTERS:
            written = store.put(KEYS.roster, value)
            await until(lambda: b._watch_cache.revision(KEYS.roster) >= written)  # noqa: B023 - awaited here
            assert len(b.view.nodes) == len(a.view.nodes) == 2
            await until(lambda: store.get(KEYS.roster).value not in ROSTERS)

    play(scenario)


@pytest.mark.parametrize("key", [KEYS.generation, KEYS.closed, KEYS.wanted])
def test_the_leader_puts_back_what_stood_in_a_key(key):
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: a.view.leader() == b.view.leader() == "a")
        good = {KEYS.generation: generation(3), KEYS.wanted: Wanted(max_nodes=5)}.get(key)
        if good is not None:
            store.put(key, records.to_bytes(good))
            await until(lambda: b._watch_cache.revision(key) > 0 and a._watch_cache.revision(key) > 0)
        for value in ANY:
            store.put(key, value)
            await until(lambda: (entry := store.get(key)) is None or entry.value not in ANY)
            found = store.get(key)
            assert (found and found.value) == (good and records.to_bytes(good))
            assert b.view.closed is a.view.closed is None
        assert b._watch_cache.last(key) == (good and records.to_bytes(good))

    play(scenario)


def test_a_generation_that_names_slots_this_node_does_not_have_is_none():
    async def scenario(store, open_, until):
        a = await open_("a")
        await until(lambda: a.view.leader() == "a")
        store.put(KEYS.generation, changed(generation(3), members=[[0, 7, 1]]))
        await until(lambda: store.get(KEYS.generation) is None)
        assert a.view.generation is None

    play(scenario)


def test_what_names_no_leader_is_removed_and_somebody_leads():
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: a.view.leader() == b.view.leader() == "a")
        for value in (*ANY, b"b", b"somebody else"):  # also a name: what is under no lease is nobody's
            store.put(KEYS.leader, value)
            await until(lambda: (entry := store.get(KEYS.leader)) is not None and entry.lease)
            await until(lambda: a.view.leader() in ("a", "b") and a.view.leader() == b.view.leader())

    play(scenario)


def test_a_nodes_record_stands_until_it_is_written_again(monkeypatch):
    async def scenario(store, open_, until):
        a, b = await open_("a"), await open_("b")
        await until(lambda: len(a.view.nodes) == len(b.view.nodes) == 2)
        own = store.get(f"{KEYS.nodes}b")
        for value in (*ANY, records.to_bytes(node("a"))):  # also one of another node
            store.put(f"{KEYS.nodes}b", value)
        await until(lambda: len(a.view.nodes) == 2)
        await b._own.probe()
        again = store.get(f"{KEYS.nodes}b")
        assert (again.value, again.lease) == (own.value, own.lease)
        store.put(f"{KEYS.nodes}a", b"garbage")  # it leads: it sees it
        await until(lambda: store.get(f"{KEYS.nodes}a").lease)
        store.put(f"{KEYS.nodes}stranger", b"garbage")
        await until(lambda: len(b.view.nodes) == 2)

    play(scenario)


@pytest.fixture
def standing():
    """A store with all records of a job, and the words that make commands find it."""
    with MemoryStore() as state, StoreServer(state) as server:
        state.put(f"{KEYS.nodes}a", records.to_bytes(node("a", min_nodes=1, max_nodes=2)))
        state.put(KEYS.leader, b"a")
        state.put(KEYS.generation, records.to_bytes(generation(1)))
        state.put(KEYS.wanted, records.to_bytes(Wanted()))
        state.put(f"{records.live_prefix('job')}a", records.to_bytes(Live(steps=((0, 1, ""),), at=1.0)))
        state.put(f"{stragglers.slow_prefix('job')}found", b'{"generation": 1, "slow": []}')
        yield state, ("job", "--endpoint", server.url)


@pytest.mark.slow
def test_every_command_names_the_key_that_holds_garbage(standing, capsys):
    state, place = standing
    keys = [kv.key for kv in state.range("/resilin/")[0]]
    for key in [*keys, KEYS.closed, f"{KEYS.nodes}b"]:
        tables = [] if key == KEYS.leader else [("top", "--once")]  # nobody tells of steps: it would wait for that
        before = state.get(key)
        for value in (ANY[1], b'{"unknown": 1}', b"[" * 100_000):
            state.put(key, value)
            for name, *more in (("status",), ("scale", "1"), ("drain", "nobody"), *tables):
                code = main.main([name, place[0], *more, *place[1:]])
                told = capsys.readouterr().err
                assert "Traceback" not in told
                assert "internal error" not in told
                if key != KEYS.leader:
                    assert (code, f"{key} in the store holds" in told) == (4, True), (name, key, told)
        if before is None:
            state.delete(key)
        else:
            state.put(key, before.value)


@pytest.mark.multiproc
def test_a_job_ends_well_though_all_its_keys_are_written_over_and_over(launch, steps, tmp_path, free_port):
    (steps / "hold").touch()
    flags = ["--nnodes=1:2", "--rdzv-backend=embedded", f"--rdzv-endpoint=127.0.0.1:{free_port}", "--max-restarts", 3]
    flags += ["--rdzv-id", "job", "--nproc-per-node", 1, "--rdzv-conf", "lease_ttl=2,last_call_timeout=0.5"]
    flags += ["--no-python", sys.executable, INPLACE, steps, 10, 0.01, 2]
    first = launch(*flags)
    first.until(lambda: "world 1" in first.out)
    second = launch(*flags)
    second.until(lambda: re.search(r"world \d+ rank 1/2", first.out + second.out))
    with store.connect(f"embedded://127.0.0.1:{free_port}") as client:
        keys = [kv.key for kv in client.range("/resilin/")[0]]
        keys += [KEYS.closed, KEYS.wanted, KEYS.roster, f"{KEYS.nodes}stranger", f"{KEYS.nodes}\udcff"]
        keys += [f"/resilin//{name}/job/x" for name in ("live", "slow", "tempos", "stacks")]
        for value in ANY[:8]:
            for key in keys:
                client.put(key, value)
    command = [sys.executable, "-m", "resilin.launcher.main", "status", "job", "--endpoint", f"127.0.0.1:{free_port}"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (told.returncode, "in the store holds" in told.stderr) == (4, True), told.stderr
    (steps / "die-0").write_text("0 SIGKILL")
    first.until(lambda: "killed by SIGKILL" in first.err + second.err)
    first.until(lambda: max(map(int, re.findall(r"world (\d+) rank \d/2", first.out + second.out))) > 2)
    (steps / "hold").unlink()
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    assert "/resilin/job/world/generation in the store holds" in first.err
    assert "Traceback" not in first.err + second.err
    assert int(Path(steps / "committed").read_text()) >= 10
