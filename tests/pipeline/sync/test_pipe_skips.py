"""Skip connections: names, checks, layouts, and the way of a stashed tensor through a pipe."""

import copy
import gc
import threading
import weakref

import pytest
from pipe_models import bits, gradients, numbers, unpiped

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import Pipe, WithDevice, is_checkpointing
from resilin.distributed.pipeline.sync.skip import Namespace, pop, skippable, stash, verify_skippables
from resilin.pipeline.sync.skip.layout import inspect_skip_layout
from resilin.pipeline.sync.skip.namespace import SkipName
from resilin.pipeline.sync.skip.tracker import SkipTracker, current_skip_tracker, use_skip_tracker


class Pass(nn.Module):
    def forward(self, x):
        return x


@skippable(stash=["foo"])
class StashFoo(nn.Module):
    def forward(self, x):
        yield stash("foo", x * 2)
        return x


@skippable(pop=["foo"])
class PopFoo(nn.Module):
    def forward(self, x):
        foo = yield pop("foo")
        return x + foo


@skippable(stash=["bar"])
class StashBar(nn.Module):
    pass


@skippable(pop=["bar"])
class PopBar(nn.Module):
    pass


# -- names


def test_namespaces_differ_and_copies_are_the_same():
    ns = Namespace()
    assert ns == ns
    assert ns != Namespace()
    assert ns != 1
    assert copy.copy(ns) == copy.deepcopy(ns) == ns
    assert hash(copy.copy(ns)) == hash(ns)
    assert (ns < Namespace()) in (True, False)
    with pytest.raises(TypeError):
        ns < 1  # noqa: B015


def test_a_skippable_layer_keeps_the_names_of_the_class_and_shows_the_layer():
    @skippable(stash=["hello"])
    class Hello(nn.Module):
        """Says hello."""

        def __init__(self, a=0):
            super().__init__()
            self.conv = nn.Linear(1, 1)

        def forward(self, x):
            yield stash("hello", x)
            return self.conv(x)

    m = Hello(1)
    assert repr(m) == "@skippable(" + repr(m.module) + ")"
    assert (Hello.__name__, Hello.__doc__, Hello.__module__) == ("Hello", "Says hello.", __name__)
    assert [name for name, _ in m.named_parameters()] == ["module.conv.weight", "module.conv.bias"]


def test_names_are_lists():
    with pytest.raises(TypeError, match="expected lists of names, got stash='foo'"):
        skippable(stash="foo")


def test_only_declared_names_are_isolated():
    ns = Namespace()
    assert list(StashFoo().isolate(ns).stashable()) == [(ns, "foo")]
    assert list(StashFoo().isolate(ns, only=[]).stashable()) == [(None, "foo")]
    with pytest.raises(ValueError, match="isolate: 'bar' not declared"):
        StashFoo().isolate(ns, only=["bar"])


# -- what does not match


def refusal(*layers):
    with pytest.raises(TypeError, match="one or more pairs of stash and pop do not match") as caught:
        verify_skippables(nn.Sequential(*layers))
    return [line[2:] for line in str(caught.value).splitlines() if line.startswith("* ")]


def test_what_is_stashed_and_popped_once_is_taken():
    verify_skippables(nn.Sequential(StashFoo(), Pass(), PopFoo()))
    verify_skippables(nn.Sequential(nn.Sequential(StashFoo(), StashBar()), nn.Sequential(PopBar(), PopFoo())))
    verify_skippables(nn.Sequential())


def test_what_nobody_pops_is_refused():
    assert refusal(StashFoo()) == ["no module declared 'foo' as poppable but stashed"]


def test_what_nobody_stashed_before_is_refused():
    assert refusal(PopFoo()) == ["'0' declared 'foo' as poppable but it was not stashed"]
    assert refusal(PopFoo(), StashFoo()) == [
        "'0' declared 'foo' as poppable but it was not stashed",
        "no module declared 'foo' as poppable but stashed",
    ]


def test_a_layer_does_not_pop_what_it_stashes():
    both = skippable(stash=["foo"], pop=["foo"])(nn.Identity)
    assert refusal(both()) == ["'0' declared 'foo' both as stashable and as poppable"]


def test_a_name_is_popped_once():
    assert refusal(StashFoo(), PopFoo(), PopFoo()) == ["'2' redeclared 'foo' as poppable but not isolated by namespace"]


def test_a_name_is_stashed_once():
    assert refusal(StashFoo(), StashFoo(), PopFoo()) == [
        "'1' redeclared 'foo' as stashable but not isolated by namespace"
    ]
    assert refusal(StashFoo(), PopFoo(), nn.Sequential(StashFoo(), PopFoo())) == [
        "'2.0' redeclared 'foo' as stashable but not isolated by namespace",
        "'2.1' redeclared 'foo' as poppable but not isolated by namespace",
    ]


def test_namespaces_keep_names_apart():
    a, b = Namespace(), Namespace()
    verify_skippables(
        nn.Sequential(StashFoo().isolate(a), StashFoo().isolate(b), PopFoo().isolate(b), PopFoo().isolate(a))
    )


def test_a_pipe_refuses_what_does_not_match():
    with pytest.raises(TypeError, match="no module declared 'foo' as poppable but stashed"):
        Pipe(nn.Sequential(StashFoo()))


# -- layouts


def layout(*parts):
    return inspect_skip_layout([nn.Sequential(*part) for part in parts])


def test_layers_of_one_part_need_no_way():
    found = layout([Pass()], [StashFoo(), PopFoo()], [Pass()])
    assert [list(found.copy_policy(j)) for j in range(3)] == [[], [], []]
    assert not found.requires_copy(None, "foo")
    assert [list(each.copy_policy(0)) for each in [layout([Pass()])]] == [[]]


@pytest.mark.parametrize("between", [0, 1, 2])
def test_a_tensor_goes_straight_to_the_part_that_pops_it(between):
    found = layout([StashFoo()], *[[Pass()]] * between, [PopFoo()])
    last = between + 1
    assert list(found.copy_policy(last)) == [(0, None, "foo")]
    assert [list(found.copy_policy(j)) for j in range(last)] == [[]] * last
    assert found.stashed_by(0) == found.popped_by(last) == (SkipName(None, "foo"),)
    assert found.requires_copy(None, "foo")


def test_a_part_pops_from_several_in_their_order():
    found = layout([StashBar()], [StashFoo()], [PopFoo(), PopBar()])
    assert list(found.copy_policy(2)) == [(0, None, "bar"), (1, None, "foo")]


def test_namespaces_have_ways_of_their_own():
    ns = Namespace()
    found = layout([StashFoo().isolate(ns)], [StashFoo()], [PopFoo()], [PopFoo().isolate(ns)])
    assert list(found.copy_policy(2)) == [(1, None, "foo")]
    assert list(found.copy_policy(3)) == [(0, ns, "foo")]


# -- trackers and commands


def test_each_thread_has_a_tracker_and_others_take_its_place():
    own, other = current_skip_tracker(), []
    thread = threading.Thread(target=lambda: other.append(current_skip_tracker()))
    thread.start()
    thread.join()
    assert other[0] is not own
    with use_skip_tracker(SkipTracker()) as tracker:
        assert current_skip_tracker() is tracker
    assert current_skip_tracker() is own


def test_a_tracker_gives_what_it_holds_once():
    tracker, x, name = SkipTracker(), torch.ones(1), SkipName(None, "foo")
    tracker.save(name, x)
    assert len(tracker) == 1
    assert tracker.load(name) is x
    with pytest.raises(KeyError):
        tracker.load(name)


@pytest.fixture
def tracker():
    with use_skip_tracker(SkipTracker()) as made:
        yield made


def test_what_is_stashed_is_popped(tracker):
    y = nn.Sequential(StashFoo(), Pass(), PopFoo())(torch.ones(1))
    assert y.tolist() == [3.0]
    assert len(tracker) == 0


def test_none_is_stashed_and_popped(tracker):
    @skippable(stash=["foo"])
    class StashNone(nn.Module):
        def forward(self, x):
            yield stash("foo", None)
            return x

    @skippable(pop=["foo"])
    class PopNone(nn.Module):
        def forward(self, x):
            foo = yield pop("foo")
            assert foo is None
            return x

    layers = nn.Sequential(StashNone(), PopNone())
    x = torch.ones(2)
    assert torch.equal(layers(x), x)
    assert torch.equal(Pipe(layers, chunks=2)(x).local_value(), x)


def skip_layer(commands, **names):
    class Layer(nn.Module):
        def forward(self, x):
            for command in commands:
                yield command(x)
            return x

    return skippable(**names)(Layer)()


@pytest.mark.parametrize(
    ("commands", "names", "message"),
    [
        ([lambda x: stash("foo", x)], {}, "'foo' has not been declared as stashable"),
        ([lambda _: pop("foo")], {}, "'foo' has not been declared as poppable"),
        ([], {"stash": ["foo"]}, "'foo' must be stashed but have not"),
        ([], {"pop": ["foo"]}, "'foo' has not been stashed"),
        ([lambda _: "hello"], {}, "'hello' is not a command from @skippable"),
    ],
)
def test_commands_that_were_not_declared_are_refused(tracker, commands, names, message):
    with pytest.raises(RuntimeError, match=message):
        skip_layer(commands, **names)(torch.ones(1))


def test_what_was_declared_must_be_popped_once(tracker):
    for commands, message in (([], "must be popped but have not"), ([lambda _: pop("foo")] * 2, "popped already")):
        StashFoo()(torch.ones(1))
        with pytest.raises(RuntimeError, match=message):
            skip_layer(commands, pop=["foo"])(torch.ones(1))


def test_a_layer_that_yields_nothing_returns_as_it_is(tracker):
    assert skippable()(Pass)()(torch.ones(1)).tolist() == [1.0]


def test_a_layer_may_have_several_inputs_and_outputs(tracker):
    @skippable(stash=["foo"])
    class Two(nn.Module):
        def forward(self, a, b):
            yield stash("foo", a)
            return a + b, b

    @skippable(pop=["foo"])
    class Join(nn.Module):
        def forward(self, a, b):
            foo = yield pop("foo")
            return a + b + foo

    x, y = torch.ones(4), torch.ones(4)
    assert Pipe(nn.Sequential(Two(), Join()), chunks=2)(x, y).local_value().tolist() == [4.0] * 4


# -- through a pipe


def skipping(devices):
    torch.manual_seed(3)
    layers = [StashFoo(), nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3), PopFoo(), nn.Linear(3, 3)]
    return nn.Sequential(*(WithDevice(layer, device) for layer, device in zip(layers, devices, strict=True)))


@pytest.mark.parametrize("mode", ["always", "except_last", "never"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "devices",
    [["sim:0"] * 6, ["sim:0"] * 3 + ["sim:1"] * 3, [f"sim:{i}" for i in range(6)], ["cpu"] * 6],
    ids=["one", "two", "six", "cpu"],
)
def test_skips_give_the_bits_of_the_layers_called_in_turn(mode, train, devices):
    plain, piped = skipping(["cpu"] * 6).train(train), skipping(devices)
    x = numbers(7, 3, device="cpu", requires_grad=True)
    torch.manual_seed(9)
    unpiped(plain, x, 3).square().sum().backward()
    want, x.grad = bits([x.grad]), None
    pipe = Pipe(piped, chunks=3, checkpoint=mode).train(train)
    torch.manual_seed(9)
    pipe(x.to(devices[0])).local_value().square().sum().backward()
    assert bits([x.grad]) == want
    assert gradients(pipe) == gradients(plain)


def test_an_early_layer_pops_the_tensor_on_the_device_of_its_part():
    seen = []

    @skippable(pop=["foo"])
    class Look(nn.Module):
        def forward(self, x):
            foo = yield pop("foo")
            seen.append((str(foo.device), is_checkpointing()))
            return x + foo

    layers = nn.Sequential(WithDevice(StashFoo(), "sim:0"), WithDevice(Pass(), "sim:1"), WithDevice(Look(), "sim:2"))
    Pipe(layers, chunks=2)(numbers(2, 1, requires_grad=True))
    assert seen == [("sim:2", True), ("sim:2", False)]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mode", ["always", "except_last", "never"])
def test_a_skip_tensor_is_freed_when_it_is_popped(train, mode):
    refs = []

    @skippable(stash=["foo"])
    class Stash(nn.Module):
        def forward(self, x):
            foo = x * 2
            refs.append(weakref.ref(foo))
            yield stash("foo", foo)
            return x * 1

    class Alive(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.count = count

        def forward(self, x):
            alive = sum(ref() is not None for ref in refs)
            assert alive == self.count, alive
            return x * 1

    @skippable(pop=["foo"])
    class Pop(nn.Module):
        def forward(self, x):
            yield pop("foo")
            return x * 1

    layers = nn.Sequential(Stash(), Alive(1), Pop(), Alive(0))
    pipe = Pipe(layers, chunks=1, checkpoint=mode).train(train)
    gc.disable()  # freed by the last reference, not some time later
    try:
        with torch.no_grad():
            pipe(torch.ones(2, 1))
        refs.clear()
        if not train or mode == "never":
            pipe(torch.ones(2, 1, requires_grad=True)).local_value().sum().backward()
            assert [ref() for ref in refs] == [None]
    finally:
        gc.enable()


def test_nothing_is_left_in_trackers_and_graphs_after_a_step():
    refs = []

    @skippable(stash=["foo"])
    class Stash(nn.Module):
        def forward(self, x):
            foo = x * x
            refs.append(weakref.ref(foo))
            yield stash("foo", foo)
            return x * x

    before = len(current_skip_tracker())
    pipe = Pipe(nn.Sequential(Stash(), nn.Linear(1, 1), PopFoo()), chunks=2, checkpoint="always")
    pipe(torch.ones(2, 1, requires_grad=True)).local_value().sum().backward()
    gc.collect()
    assert len(current_skip_tracker()) == before
    assert len(refs) == 4
    assert all(ref() is None for ref in refs)
