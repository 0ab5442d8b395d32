"""The soak: which runs it plays, and what its report says of them."""

import json

from benchmarks import harness, soak
from benchmarks.harness import Options
from resilin.elastic.chaos.records import Result

FAULT = {"do": "kill", "to": "worker", "rank": 1, "at": "backward", "step": 3}


def row(number, *, ok=True, named=True, fault=FAULT, line="elastic-run: worker died"):
    told = {"fault": 0, "rank": named, "cause": named, "line": line}
    return {
        "number": number, "scene": soak.scene_of(number)[0].name, "seed": 7, "ok": ok, "recovered": True, "same": ok,
        "counted": True, "attributed": named, "seconds": 1.0, "codes": [0], "faults": [fault], "fired": [0],
        "attributions": [told], "said": [],
    }  # fmt: skip


def test_scenes_take_turns_and_the_seeds_of_each_follow_one_another():
    played, turns = {}, 4
    for number in range(turns * sum(scene.share for scene in soak.SCENES)):
        scene, seed = soak.scene_of(number)
        played.setdefault(scene.name, []).append(seed)
    assert {name: seeds == list(range(len(seeds))) for name, seeds in played.items()} == dict.fromkeys(played, True)
    shares = {scene.name: turns * scene.share for scene in soak.SCENES}
    assert {name: len(seeds) for name, seeds in played.items()} == shares


def test_the_report_counts_by_fault_and_lists_what_went_wrong_with_the_way_to_play_it_again():
    hang = {**FAULT, "do": "stop"}
    rows = [row(0), row(1, ok=False), row(2, fault=hang, named=False, line="elastic-run: rank 0"), row(3, fault=hang)]
    text = harness.render(soak.report(rows), {}, Options())
    lines = text.splitlines()
    assert "| kill worker | 2 | 2 | 1 | 2 | 2 | 2 | 2 | 0 |" in lines
    assert "| stop worker | 2 | 2 | 2 | 2 | 2 | 1 | 1 | 0 |" in lines
    assert "| of these: same bits | % | 75.0 |  |" in lines
    assert "| crash: right rank and cause named, of 2 (target 99) | % | 100 |  |" in lines
    assert "| hang: right rank and cause named, of 2 (target 95) | % | 50.0 |  |" in lines
    assert "- run 1 (one node, 2 workers, seed 7): kill rank 1 in backward (nth 0), step 3: other bits" in lines
    assert any(line.startswith("- run 2 ") and line.endswith("not named: `elastic-run: rank 0`") for line in lines)
    assert "`python -m benchmarks.soak --run N` plays it again" in text


def test_a_soak_that_was_stopped_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text(json.dumps(row(0)) + "\n" + json.dumps(row(2)) + "\n")
    alone = Result(pid=1, rank=0, fingerprint="x", step=1, position=0)
    monkeypatch.setattr(soak.chaos, "undisturbed", lambda *args: alone)
    monkeypatch.setattr(soak, "play", lambda number, expected: row(number))
    assert [one["number"] for one in soak.soak(4, log, 2)] == [0, 1, 2, 3]
    assert [json.loads(line)["number"] for line in log.read_text().splitlines()] == [0, 2, 1, 3]
