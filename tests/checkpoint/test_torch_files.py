"""Files of torch.save are read as PyTorch reads them, without it."""

import argparse
import base64
import contextlib
import io
import json
import math
import pickle
import shutil
import struct
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.checkpoint.open_storage import open_storage
from resilin.checkpoint.torch_files import import_torch, read_pickle
from resilin.errors import CorruptFile, StorageMissing, UnsafePickle, UsageError

FOLDER = Path(__file__).parents[1] / "fixtures" / "torch_files"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
KINDS = ["pt", "old.pt"]


def assert_as_expected(value, expected):
    if isinstance(value, resilin.Tensor):
        assert (value.dtype.name, list(value.shape)) == (expected["dtype"], expected["shape"])
        assert np.ascontiguousarray(value.numpy()).tobytes() == base64.b64decode(expected["data"])
    elif isinstance(value, dict):
        assert [str(key) for key in value] == list(expected)
        for key, item in value.items():
            assert_as_expected(item, expected[str(key)])
    elif isinstance(value, list | tuple):
        assert len(value) == len(expected)
        for item, other in zip(value, expected, strict=True):
            assert_as_expected(item, other)
    else:
        assert value == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["training", "dtypes", "views"])
def test_tensors_have_pytorchs_names_dtypes_shapes_and_bits(name, kind):
    assert_as_expected(import_torch(FOLDER / f"{name}.{kind}"), EXPECTED[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_its_optimizer_and_scheduler_go_on_from_pytorchs_state(kind):
    saved = import_torch(FOLDER / f"training.{kind}")
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    optimizer = optim.AdamW(model.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1)
    assert isinstance(saved["model"], OrderedDict)
    assert saved["model"]._metadata["1"] == {"version": 2}
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    assert optimizer.param_groups[0]["lr"] == 0.0025
    assert optimizer.state[model[0].weight]["step"] == 2
    assert model[1].num_batches_tracked == 2
    model(resilin.rand(4, 1, 4, 4)).sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["step"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_shared_storage_share_memory_with_their_strides(kind):
    views = import_torch(FOLDER / f"views.{kind}")
    assert views["transposed"].stride() == (1, 4)
    assert views["columns"].stride() == (4, 2)
    assert views["expanded"].stride() == (0, 1)
    views["row"][0] = -7
    assert views["base"][1, 0] == -7
    assert views["transposed"][0, 1] == -7


@pytest.mark.parametrize("kind", ["pt", "old.pt", "protocol5.pt", "protocol5.old.pt"])
def test_containers_and_plain_values_come_as_they_were(kind):
    saved = import_torch(FOLDER / f"containers.{kind}")
    assert saved["plain"] == [
        None, True, False, 0, -1, 255, 65536, -(2**40), 2**70, 1.5, math.inf, "text ü", b"\x00\xff",
    ]  # fmt: skip
    assert [type(value) for value in saved["plain"][:3]] == [type(None), bool, bool]
    assert saved["nested"] == ({"a": [(), [], {}]}, {1, 2}, frozenset({"x"}), 1 + 2j, bytearray(b"ab"))
    assert type(saved["nested"][2]) is frozenset
    assert type(saved["ordered"]) is OrderedDict
    assert list(saved["ordered"].items()) == [("b", 1), ("a", 2)]
    assert saved["counter"] == Counter("aab")
    assert type(saved["size"]) is resilin.Size
    assert saved["dtype"] is resilin.float16
    assert saved["device"] == "cuda:1"
    assert saved["keys"] == {0: "int", 1.5: "float", (0, "a"): "tuple", None: "none", 1: "bool"}


@pytest.mark.parametrize("factory", [int, str, float, list, dict, set, None])
@pytest.mark.parametrize("protocol", [2, 4])
def test_default_dictionaries_and_ranges_come_as_they_were_under_the_names_of_python_2_too(factory, protocol):
    saved = defaultdict(factory, {"a": [range(3), slice(1, 2)]})
    back = read_pickle(pickle.dumps(saved, protocol), lambda key: None, "the file", {})
    assert type(back) is defaultdict
    assert (back, back.default_factory) == (saved, factory)


@pytest.mark.parametrize("kind", ["pt", "protocol5.old.pt"])
def test_parameters_are_parameters_and_need_gradients_as_they_did(kind):
    saved = import_torch(FOLDER / f"containers.{kind}")
    assert isinstance(saved["parameter"], nn.Parameter)
    assert saved["parameter"].requires_grad
    assert isinstance(saved["frozen"], nn.Parameter)
    assert not saved["frozen"].requires_grad
    assert not isinstance(saved["noted"], nn.Parameter)
    assert not saved["noted"].requires_grad
    assert saved["grad"].requires_grad
    assert saved["parameter"].tolist() == saved["noted"].tolist() == [0, 1]


def test_a_file_without_check_sums_is_read_too():
    assert_as_expected(import_torch(FOLDER / "views.unchecked.pt"), EXPECTED["views"])


def test_a_file_at_an_url_is_read():
    storage = open_storage("memory://torch-files")
    storage.write("a.pt", (FOLDER / "views.pt").read_bytes())
    storage.write("b.pt", (FOLDER / "views.old.pt").read_bytes())
    for name in ("a.pt", "b.pt"):
        assert_as_expected(import_torch(f"memory://torch-files/{name}"), EXPECTED["views"])
    storage.delete_tree("")


@pytest.mark.parametrize(
    ("name", "refused", "why"),
    [
        ("module", "torch.nn.modules.linear.Linear", "neither a tensor nor a plain container: .* Save state dicts of"),
        ("sparse", "torch._utils._rebuild_sparse_tensor", r"a sparse tensor, .* Save its to_dense\(\) where"),
        ("quantized", "torch._utils._rebuild_qtensor", r"a quantized tensor, .* Save its dequantize\(\) where"),
        ("float8", "torch.float8_e4m3fn", "a dtype that tensors here cannot have: .* Save tensors of another dtype"),
        ("storage", "raw storage as a value", "neither a tensor nor a plain container"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_by_its_name(name, refused, why):
    with pytest.raises(UnsafePickle, match=f"{name}.pt asks for {refused}, which is {why}") as caught:
        import_torch(FOLDER / f"{name}.pt")
    assert caught.value.refused == refused
    assert caught.value.path == str(FOLDER / f"{name}.pt")


@pytest.mark.parametrize("kind", ["pt", "old.pt"])
def test_arguments_of_programs_and_values_of_numpys_come_as_they_were(kind):
    saved = import_torch(FOLDER / f"beside.{kind}")
    args = saved["args"]
    assert type(args) is argparse.Namespace
    assert (args.lr, args.name, args.layers, args.seed.tolist()) == (0.1, "run", [2, 3], [0, 1])
    assert (type(saved["best"]), saved["best"]) == (np.float64, 0.5)
    assert (type(saved["step"]), saved["step"]) == (np.int64, 7)
    np.testing.assert_array_equal(saved["curve"], np.arange(6.0).reshape(2, 3))
    assert saved["names"].tolist() == ["a", "bc"]
    assert saved["mixed"].tolist() == [1, "a"]
    assert import_torch(FOLDER / "numpy.pt")["numpy"].tolist() == [0, 1]


def test_a_tensor_without_elements_stays_without():
    meta = import_torch(FOLDER / "meta.pt")["meta"]
    assert (meta.device.type, meta.shape, meta.dtype) == ("meta", (2,), resilin.float32)


def pickled(state, names=("argparse", "Namespace"), arguments=()):
    """A file of the old format whose object is made by a call of a name, and given a state."""
    head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    call = b"\x80\x02c" + "\n".join((*names, "")).encode() + pickle.dumps(arguments, 2)[2:-1] + b"R"
    return head + call + pickle.dumps(state, 2)[2:-1] + b"b." + pickle.dumps([], 2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (pickled({1: 2}), "has the state"),
        (pickled([1]), "has the state"),
        (pickled({"a": 1}, arguments=(1,)), "takes 0 positional arguments"),
        (pickled({"a": 1}, ("argparse", "ArgumentParser")), "asks for argparse.ArgumentParser"),
        (pickled((1, (1 << 40,), "f8", False, b""), ("numpy", "ndarray"), ((1,),)), "pickles only name"),
    ],
)
def test_what_no_program_saved_is_refused(data, error, tmp_path):
    (tmp_path / "made.pt").write_bytes(data)
    with pytest.raises(CorruptFile, match=error):
        import_torch(tmp_path / "made.pt")


def test_load_reads_pytorchs_files_where_map_location_says(tmp_path):
    for kind in ("pt", "old.pt"):
        path = FOLDER / f"views.{kind}"
        for given in (path, str(path), io.BytesIO(path.read_bytes())):
            assert_as_expected(resilin.load(given), EXPECTED["views"])
        moved = resilin.load(path, map_location="meta")
        assert all(tensor.is_meta for tensor in moved.values())
        assert resilin.load(path, map_location={"cpu": "sim:1"})["base"].device == resilin.device("sim:1")
        assert resilin.load(path, map_location=lambda tensor, where: tensor.to("meta"))["row"].is_meta
    with pytest.raises(RuntimeError, match="mps"):
        resilin.load(FOLDER / "views.pt", map_location="mps")
    with pytest.raises(UnsafePickle, match=r"torch\.nn\.modules\.linear\.Linear"):
        resilin.load(FOLDER / "module.pt")


def test_what_was_on_a_device_that_is_not_here_needs_map_location(tmp_path):
    data = (FOLDER / "views.old.pt").read_bytes()
    path = tmp_path / "there.pt"
    path.write_bytes(data.replace(b"X\x03\x00\x00\x00cpu", b"X\x05\x00\x00\x00mps:0"))
    with pytest.raises(UsageError, match="saved on 'mps:0'; give map_location='cpu'"):
        resilin.load(path)
    assert_as_expected(resilin.load(path, map_location="cpu"), EXPECTED["views"])
    assert_as_expected(import_torch(path), EXPECTED["views"])


def test_a_program_is_refused():
    with pytest.raises(UsageError, match="is a TorchScript program"):
        import_torch(FOLDER / "torchscript.pt")


# -- damage


@pytest.mark.parametrize("name", ["training.pt", "training.old.pt"])
def test_a_file_cut_anywhere_is_refused(name, tmp_path):
    data = (FOLDER / name).read_bytes()
    for length in [*range(0, 64), *range(64, len(data), 37), len(data) - 1]:
        (tmp_path / "cut.pt").write_bytes(data[:length])
        with pytest.raises((CorruptFile, UsageError), match=r"cut\.pt"):
            import_torch(tmp_path / "cut.pt")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "apart"), [("training.pt", 31), ("views.pt", 9), ("views.old.pt", 3)])
def test_a_file_with_any_byte_changed_gives_a_state_or_one_of_our_errors(name, apart, tmp_path):
    data = bytearray((FOLDER / name).read_bytes())
    read = 0
    for at in range(0, len(data), apart):
        data[at] ^= 0xFF
        (tmp_path / "damaged.pt").write_bytes(data)
        with contextlib.suppress(CorruptFile, UsageError):
            import_torch(tmp_path / "damaged.pt")
            read += 1
        data[at] ^= 0xFF
    assert read < len(data) // apart


def rewritten(tmp_path, name="views.pt", change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    """The archive `name` with `change(entry's name, bytes)` in place of each entry; None leaves it out."""
    target = tmp_path / "rewritten.pt"
    with zipfile.ZipFile(FOLDER / name) as old, zipfile.ZipFile(target, "w", compression) as new:
        for entry in old.infolist():
            data = change(entry.filename.partition("/")[2], old.read(entry))
            if data is not None:
                new.writestr(entry.filename, data)
    return target


def test_a_rewritten_archive_is_read_also_without_what_older_versions_leave_out(tmp_path):
    path = rewritten(tmp_path, change=lambda name, data: data if name.startswith("data") else None)
    assert_as_expected(import_torch(path), EXPECTED["views"])


def test_changed_bytes_of_a_tensor_are_found_by_their_check_sum(tmp_path):
    data = bytearray((FOLDER / "views.pt").read_bytes())
    at = data.index(struct.pack("<4f", 0, 1, 2, 3))
    data[at] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(CorruptFile, match="entry data/0 is damaged: its check sum is"):
        import_torch(tmp_path / "a.pt")


def test_a_missing_storage_is_named(tmp_path):
    path = rewritten(tmp_path, change=lambda name, data: None if name == "data/0" else data)
    with pytest.raises(CorruptFile, match="the archive has no entry data/0"):
        import_torch(path)


def test_a_storage_of_another_size_is_named(tmp_path):
    path = rewritten(tmp_path, change=lambda name, data: data[:-4] if name == "data/0" else data)
    with pytest.raises(CorruptFile, match="entry data/0 has 44 bytes, expected 48"):
        import_torch(path)


def test_big_endian_files_are_refused(tmp_path):
    path = rewritten(tmp_path, change=lambda name, data: b"big" if name == "byteorder" else data)
    with pytest.raises(UsageError, match="written on a machine with byte order b'big'"):
        import_torch(path)
    data = (FOLDER / "views.old.pt").read_bytes()
    at = data.index(b"little_endian") + len(b"little_endian")
    place = data.index(b"\x88", at)
    (tmp_path / "old.pt").write_bytes(data[:place] + b"\x89" + data[place + 1 :])
    with pytest.raises(UsageError, match="was not written on a little-endian machine"):
        import_torch(tmp_path / "old.pt")


def test_compressed_archives_are_refused_before_they_are_unpacked(tmp_path):
    path = rewritten(tmp_path, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CorruptFile, match="is compressed or encrypted"):
        import_torch(path)


def test_archives_with_two_entries_of_one_name_are_refused(tmp_path):
    path = tmp_path / "twice.pt"
    shutil.copy(FOLDER / "views.pt", path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("views/data.pkl", b"other")
    with pytest.raises(CorruptFile, match="two entries of one name"):
        import_torch(path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "starts with b''"),
        (b"RESILIN2" + bytes(20), "is no file of torch.save"),
        (b"PK\x03\x04" + bytes(100), "no intact zip archive"),
        (b"\x80\x02K\x01.", "is a pickle, but none of torch.save"),
    ],
)
def test_other_files_are_refused(tmp_path, data, why):
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises((UsageError, CorruptFile), match=why):
        import_torch(tmp_path / "a.pt")


def test_another_archive_is_none_of_torch(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", b"<x/>")
    (tmp_path / "a.docx").write_bytes(buffer.getvalue())
    with pytest.raises(UsageError, match=r"none of torch\.save"):
        import_torch(tmp_path / "a.docx")


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(StorageMissing, match=r"no\.pt"):
        import_torch(tmp_path / "no.pt")


def test_a_boolean_of_two_is_refused(tmp_path):
    path = rewritten(tmp_path, "dtypes.pt", lambda name, data: b"\x00\x02\x01\x01" if name == "data/0" else data)
    with pytest.raises(CorruptFile, match="neither 0 nor 1"):
        import_torch(path)
