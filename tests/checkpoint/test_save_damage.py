"""Files that changed after they were written, and hostile ones: `load` and `verify` name the file and the tensor."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

import resilin
from resilin import checkpoint, nn
from resilin.checkpoint.manifest import hash_of
from resilin.errors import CheckpointError, CorruptFile
from resilin.testing.ranks import run_ranks


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    state = {
        "a": resilin.randn(300, 250),
        "flags": resilin.ones(9, dtype=resilin.bool),
        "b": resilin.arange(7),
        "n": [1, "x"],
    }
    run_ranks(2, lambda rank: checkpoint.save(path, state)).results()
    return path


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "c")


def data_files(folder):
    return sorted(folder.glob("data-*"))


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def pieces(folder):
    """(file, tensor name, first byte, end) of everything that is stored."""
    _, body, _ = json.loads((folder / "manifest.json").read_text())
    for file in body["files"]:
        at = file["data"]
        for number, start, stop, _ in file["pieces"]:
            name, dtype, _ = body["tensors"][number]
            end = at + (stop - start) * {"float32": 4, "bool": 1, "int64": 8}[dtype]
            yield folder / file["name"], name, at, end
            at = end


def test_a_flipped_bit_anywhere_in_a_tensor_is_found_and_named(folder):
    assert {name for _, name, _, _ in pieces(folder)} == {"a", "flags", "b"}
    for file, name, start, end in list(pieces(folder)):
        for place in (start, (start + end) // 2, end - 1):
            flip(file, place)
            with pytest.raises(CorruptFile, match=rf"{file.name}: tensor '{name}'") as caught:
                checkpoint.load(folder)
            assert caught.value.path == str(file)
            assert [(one.file, one.tensor) for one in checkpoint.verify(folder)] == [(str(file), name)]
            flip(file, place)
    assert checkpoint.verify(folder) == []


@pytest.mark.parametrize("place", [0, 7, 8, 20, -1])
def test_a_flipped_bit_in_the_header_of_a_file_is_found(folder, place):
    for file in data_files(folder):
        start = min(at for other, _, at, _ in pieces(folder) if other == file)
        flip(file, place if place >= 0 else start - 1)
        with pytest.raises(CorruptFile, match=f"{file.name}: its header"):
            checkpoint.load(folder)
        assert any(one.file == str(file) and one.tensor is None for one in checkpoint.verify(folder))
        flip(file, place if place >= 0 else start - 1)


def test_a_flipped_bit_anywhere_in_the_manifest_is_found(folder):
    file = folder / "manifest.json"
    size = file.stat().st_size
    for place in [*range(0, size, 97), size - 70, size - 3, size - 2, size - 1]:
        flip(file, place)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            checkpoint.load(folder)
        flip(file, place)
    checkpoint.load(folder)


def test_files_that_are_cut_are_found_before_anything_is_read(folder):
    for file in [*data_files(folder), folder / "manifest.json"]:
        whole = file.read_bytes()
        for size in (0, 5, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            target = {
                "a": resilin.zeros(300, 250),
                "flags": resilin.zeros(9, dtype=resilin.bool),
                "b": resilin.zeros(7).long(),
            }
            with pytest.raises(CheckpointError, match=file.name):
                checkpoint.load(folder, {**target, "n": None})
            assert not target["a"].any()
            assert checkpoint.latest(folder) is None
            assert file.name in checkpoint.list_checkpoints(folder)[0].problem
        file.write_bytes(whole + b"x")
        with pytest.raises(CheckpointError, match=file.name):
            checkpoint.load(folder)
        file.write_bytes(whole)
    data_files(folder)[1].unlink()
    with pytest.raises(CheckpointError, match=r"data-00001.*is missing"):
        checkpoint.load(folder)


def test_a_file_that_is_cut_while_it_is_read_is_named_with_its_tensor(folder, monkeypatch):
    monkeypatch.setattr("resilin.checkpoint.folder.check_files", lambda *args: None)
    file, _, _, end = max(pieces(folder), key=lambda piece: piece[3])
    file.write_bytes(file.read_bytes()[: end - 1])
    with pytest.raises(CorruptFile, match=rf"{file.name}.*tensor '\w+'"):
        checkpoint.load(folder)


def test_damage_that_one_rank_reads_is_raised_by_all(folder):
    file, name, start, _ = list(pieces(folder))[-1]
    flip(file, start)
    outcome = run_ranks(3, lambda rank: checkpoint.load(folder), abort=False)
    assert sorted(outcome.errors) == [0, 1, 2]
    for error in outcome.errors.values():
        assert isinstance(error, CorruptFile)
        assert file.name in str(error)
        assert f"tensor '{name}'" in str(error)


def test_the_one_before_a_damaged_one_can_be_loaded(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"n": resilin.full((3,), float(step))}, step=step)
    file = next((tmp_path / "step-2").glob("data-*"))
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-1")
    assert checkpoint.load(tmp_path)["n"].tolist() == [1, 1, 1]
    with pytest.raises(CorruptFile, match="step-2"):
        checkpoint.load(tmp_path, step=2)


# -- manifests by somebody who means harm: their hash is right


def rewrite(folder, change):
    head, body, _ = json.loads((folder / "manifest.json").read_text())
    change(head, body)
    lines = f"[{json.dumps(head)},\n{json.dumps(body)},\n"
    (folder / "manifest.json").write_text(f'{lines}"{hash_of(lines.encode())}"]\n')


def _outside(head, body):
    body["files"][0]["name"] = "../../secret"


def _absolute(head, body):
    body["files"][0]["name"] = "/etc/passwd"


def _of_another_save(head, body):
    body["files"][0]["name"] = "data-00000-000-0000000000000000.safetensors"


def _huge_shape(head, body):
    body["tensors"][0][2] = [1 << 40, 1 << 40]


def _large_shape(head, body):
    body["tensors"][0][2] = [1 << 40]


def _negative(head, body):
    body["tensors"][0][2] = [-50, -20]


def _many_dims(head, body):
    body["tensors"][0][2] = [1] * 1000


def _dtype(head, body):
    body["tensors"][0][1] = "object"


def _twice(head, body):
    body["files"][1]["pieces"] = body["files"][0]["pieces"]


def _same_file_twice(head, body):
    body["files"][1] = body["files"][0]


def _past_the_end(head, body):
    body["files"][0]["pieces"][0][2] += 1 << 30


def _other_size(head, body):
    body["files"][0]["size"] += 4


def _fewer_hashes(head, body):
    body["files"][0]["pieces"][0][3] = []


def _no_such_tensor(head, body):
    body["files"][0]["pieces"][0][0] = 99


def _true_for_a_number(head, body):
    body["files"][0]["pieces"][0][1] = False


def _missing_file(head, body):
    del body["files"][0]


def _tree_without_tensor(head, body):
    body["tree"] = {"x": {"$": "tensor", "v": 99}}


def _tree_of_code(head, body):
    body["tree"] = {"$": "__import__", "v": "os"}


def _tree_with_wrong_values(head, body):
    body["tree"] = {"$": "dict", "v": [[{"$": "tuple", "v": [[]]}, 1]]}


def _tree_with(metadata):
    pairs = [["a", {"$": "tensor", "v": 0}]]
    return lambda head, body: body.update(tree={"x": {"$": "state", "v": [pairs, metadata]}})


def _tree_with_nan(head, body):
    body["tree"] = {"x": float("nan")}


def _tree_with_infinity(head, body):
    body["tree"] = {"x": [-float("inf")]}


def _small_blocks(head, body):
    head["block_bytes"] = 1


def _large_blocks(head, body):
    head["block_bytes"] = 1 << 60


def _future(head, body):
    head["version"] = 2


def _id(head, body):
    head["id"] = "../../../../etc"


CHANGES = [
    _outside, _absolute, _of_another_save, _huge_shape, _large_shape, _negative, _many_dims, _dtype, _twice,
    _same_file_twice, _past_the_end, _other_size, _fewer_hashes, _no_such_tensor, _true_for_a_number, _missing_file,
    _tree_without_tensor, _tree_of_code, _tree_with_wrong_values, _tree_with_nan,
    _tree_with_infinity, _small_blocks, _large_blocks, _future, _id,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_hostile_manifest_is_refused_without_reading_or_allocating(folder, change):
    rewrite(folder, change)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            checkpoint.load(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    "metadata",
    [3, [], "a", {"$": "tensor", "v": 0}, {"": 3}, {"": [[]]}, {"": {"$": "bytes", "v": ""}}, {"": {"version": "2"}},
     {"": {"version": None}}, {"": {"version": {"$": "tensor", "v": 0}}}],
)  # fmt: skip
def test_versions_of_modules_that_are_none_are_refused(folder, metadata):
    rewrite(folder, _tree_with(metadata))
    for state in (None, {"x": nn.Linear(2, 2)}):
        with pytest.raises(CorruptFile, match=r"the tree of its manifest is damaged: ValueError\(.*of a module"):
            checkpoint.load(folder, state, strict=False)
    rewrite(folder, _tree_with({"": {"version": 1}}))
    assert list(checkpoint.load(folder)["x"]) == ["a"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_json_has_not_are_refused(folder, number):
    rewrite(folder, lambda head, body: body.update(tree={"x": [12345.5]}))
    text = (folder / "manifest.json").read_text().replace("12345.5", number)
    lines = text[: text.rindex('"', 0, -5)]
    (folder / "manifest.json").write_text(f'{lines}"{hash_of(lines.encode())}"]\n')
    with pytest.raises(CheckpointError, match=r"it is no JSON: .*is no number"):
        checkpoint.load(folder)


def test_a_rewritten_manifest_that_tells_the_truth_is_read(folder):
    rewrite(folder, lambda head, body: None)
    assert checkpoint.load(folder)["b"].tolist() == list(range(7))


def test_booleans_that_are_neither_are_refused(folder):
    file, _, start, end = next(piece for piece in pieces(folder) if piece[1] == "flags")
    data = bytearray(file.read_bytes())
    data[start] = 7
    file.write_bytes(data)

    def change(head, body):
        for record in body["files"]:
            for piece in record["pieces"]:
                if body["tensors"][piece[0]][0] == "flags" and record["name"] == file.name:
                    piece[3] = [hash_of(bytes(data[start:end]))]

    rewrite(folder, change)
    with pytest.raises(CorruptFile, match="neither 0 nor 1"):
        checkpoint.load(folder)


def test_data_files_are_safetensors(saved):
    found = {}
    for file in data_files(saved):
        found |= load_file(file)
    assert np.array_equal(found["b"], np.arange(7))
