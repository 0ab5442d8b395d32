"""`serialization.add_safe_globals`: `load` makes objects of the classes it names, and of no others."""

import dataclasses
import enum
import io
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest

import resilin
from resilin import nn
from resilin.errors import CheckpointError, UnsafePickle, UsageError
from resilin.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals

RUN = []


@dataclasses.dataclass
class Config:
    """Attributes."""

    width: int
    names: list


class Color(enum.Enum):
    """Pickled as a call of its class."""

    RED = 1


class Slotted:
    """Attributes in slots, an instance in another."""

    __slots__ = ("inner",)


class Sets:
    """Has a state of its own."""

    def __setstate__(self, state):
        RUN.append(state)
        self.state = state


class Words(dict):
    """A dictionary whose attributes are its items."""

    __getattr__ = dict.__getitem__


class Fails:
    """Its state is refused by itself."""

    def __setstate__(self, state):
        raise KeyError("no")


class Reduces:
    """Pickled as a call."""

    def __init__(self, *call):
        self._call = call

    def __reduce__(self):
        return self._call


def made(width):
    """A function that a file may call."""
    RUN.append(width)
    return Config(width, [])


@pytest.fixture(autouse=True)
def _nothing_is_trusted():
    clear_safe_globals()
    RUN.clear()
    yield
    clear_safe_globals()


def archive(data):
    """A file as torch.save writes it, with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("made/data.pkl", data if isinstance(data, bytes) else pickle.dumps(data, protocol=2))
    return io.BytesIO(file.getvalue())


def own(value):
    file = io.BytesIO()
    resilin.save(value, file)
    return io.BytesIO(file.getvalue())


FORMS = pytest.mark.parametrize("written", [archive, own])


@FORMS
def test_an_object_comes_back_where_its_class_is_allowed(written):
    with pytest.raises((UnsafePickle, UsageError), match=r"Config.*add_safe_globals"):
        resilin.load(written({"config": Config(3, ["a"])}))
    with safe_globals([Config]):
        assert resilin.load(written({"config": Config(3, ["a"])})) == {"config": Config(3, ["a"])}
    assert get_safe_globals() == []
    with pytest.raises((UnsafePickle, UsageError)):
        resilin.load(written(Config(3, ["a"])))


@FORMS
def test_slots_states_members_and_functions_are_made_as_pickle_makes_them(written):
    slotted, sets = Slotted(), Sets()
    slotted.inner, sets.a = (Color.RED, Config), 1
    add_safe_globals([Slotted, Color, Sets, Config, made, Words])
    back = resilin.load(written([slotted, sets, Color.RED, {Color.RED: 1}, Reduces(made, (5,)), OrderedDict(a=1)]))
    assert back[0].inner == (Color.RED, Config)
    assert back[1].state == {"a": 1}
    assert back[2:] == [Color.RED, {Color.RED: 1}, Config(5, []), OrderedDict(a=1)]
    assert RUN == [{"a": 1}, 5]


def test_a_name_may_be_given_for_a_class_that_moved():
    data = pickle.dumps(Config(1, []), protocol=2).replace(__name__.encode(), b"old.home")
    add_safe_globals([(Config, "old.home.Config")])
    assert resilin.load(archive(data)) == Config(1, [])
    for wrong, kind in (((Config, "a", "b"), ValueError), ((Config, 1), TypeError)):
        with safe_globals([wrong]), pytest.raises(kind, match="Expected"):
            resilin.load(archive(data))


def test_a_whole_module_comes_back_where_its_classes_are_allowed():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(UsageError, match=r"add_safe_globals.*weights_only=False"):
        resilin.load(own(model))
    with safe_globals([nn.Sequential, nn.Linear]), pytest.raises(UsageError, match=r"asks for .*ReLU"):
        resilin.load(own(model))
    with safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
        back = resilin.load(own(model))
    x = resilin.randn(4, 2)
    assert resilin.equal(back(x), model(x))
    assert isinstance(back[0].weight, nn.Parameter)


@FORMS
@pytest.mark.parametrize("call", [(os.system, ("touch pwned",)), (eval, ("1",)), (getattr, ("x", "upper"))])
def test_what_is_not_allowed_is_refused_beside_what_is(written, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add_safe_globals([Config, os.system])  # modules of the system are never allowed
    with pytest.raises((UnsafePickle, UsageError), match=r"posix|eval|getattr"):
        resilin.load(written([Config(1, []), Reduces(*call)]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "what"),
    [
        # attributes of what is allowed, by dotted names and by the call of a method
        (b"\x80\x04\x8c\x08builtins\x8c\x04dict\x93.", "builtins.dict"),
        (b"\x80\x02c%s\nConfig.__init__\n.", r"Config.__init__"),
        (b"\x80\x02c%s\nConfig.__init__.__globals__\n.", "Config.__init__.__globals__"),
        # what an allowed function gave is no function
        (b"\x80\x02c%s\nmade\nK\x05\x85R)R.", "a call of a Config"),
        # states of what nobody allowed
        (b"\x80\x02]}b.", "setting attributes of a list"),
        (b"\x80\x02c%s\nConfig\n}b.", "setting attributes of a type"),
        # functions of the table, and memory, as arguments of what is allowed
        (b"\x80\x02c%s\nmade\nctorch._utils\n_rebuild_tensor_v2\n\x85R.", "_rebuild_tensor_v2 as a value"),
        (b"\x80\x02c%s\nmade\n]ctorch\nFloatStorage\na\x85R.", "raw storage as a value"),
        (b"\x80\x02c%s\nmade\n]R.", "a call with a list"),
    ],
)
def test_what_is_allowed_leads_to_nothing_else(data, what):
    add_safe_globals([Config, made])
    with pytest.raises(UnsafePickle, match=what):
        resilin.load(archive(data.replace(b"%s", __name__.encode())))


def test_an_error_of_an_allowed_class_is_named():
    add_safe_globals([Fails, Words])
    for written in (archive, own):
        fails = Fails()
        fails.a = 1
        with pytest.raises(CheckpointError, match=r"Fails, which add_safe_globals allows, raised KeyError: 'no'"):
            resilin.load(written(fails))


def test_import_torch_trusts_nobody():
    add_safe_globals([Config])
    with zipfile.ZipFile(file := io.BytesIO(), "w") as zipped:
        zipped.writestr("made/data.pkl", pickle.dumps(Config(1, []), protocol=2))
    from resilin.checkpoint.torch_files import read_torch

    with pytest.raises(UnsafePickle, match="Config"):
        read_torch(file.getvalue(), "the file", lambda tensor, where, held: tensor)


def test_objects_of_any_class_are_saved_and_functions_without_a_name_are_not(tmp_path):
    resilin.save({"a": Config(1, [resilin.ones(2)])}, tmp_path / "x")
    back = resilin.load(tmp_path / "x", weights_only=False)["a"]
    assert back.names[0].tolist() == [1.0, 1.0]
    with pytest.raises(UsageError, match=r"\['a'\] is a function, which cannot be pickled"):
        resilin.save({"a": lambda: 1}, tmp_path / "y")
    assert not (tmp_path / "y").exists()
