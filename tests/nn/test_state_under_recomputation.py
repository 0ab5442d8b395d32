"""State written in forward moves once, also in a checkpoint, whose second run finds what the first one found.

PyTorch moves it with every run: a BatchNorm's statistics twice, and a gradient that depends on the state is that of
another state. The values here are those of the same calls without a checkpoint, which are the exact ones.
"""

import copy
import gc

import pytest

import resilin
from resilin import nn
from resilin.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop


class Averages(nn.Module):
    """A user's state: counts in place and by assignment, an average that the result depends on, attributes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", resilin.zeros(3))
        self.register_buffer("in_place", resilin.zeros((), dtype=resilin.int64))
        self.register_buffer("assigned", resilin.zeros(()))
        self.register_buffer("rows", resilin.zeros(4, 3))
        self.scale = None  # made by the first call
        self.calls = 0

    def forward(self, x):
        with resilin.no_grad():
            if self.scale is None:
                self.scale = 1 / x.detach().abs().amax()
            self.in_place += 1
            self.average.mul_(0.5).add_(x.detach().mean(0))
            self.rows[self.calls % 4] = x.detach().sum(0)
            self.rows.data.clamp_(max=50)
            self.assigned = self.assigned + 1
        self.calls += 1
        return x * self.average.clone() * self.scale


LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(3),
    "batch norm of plain averages": lambda: nn.BatchNorm1d(3, momentum=None),
    "batch norm in the middle": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()),
    "batch norm, then a view": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(0)),
    "batch norm in eval": lambda: nn.BatchNorm1d(3).eval(),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(0, (1, 4)), nn.InstanceNorm1d(4, track_running_stats=True)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    "former spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
    "embedding of bounded norm": lambda: _Rows(),
    "averages": Averages,
    "averages, then more": lambda: nn.Sequential(Averages(), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.ReLU(inplace=True)),
}


class _Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3, max_norm=0.5)

    def forward(self, x):
        return x * self.table(resilin.tensor([0, 1, 2, 1]))


def _plainly(layer, x):
    return layer(x)


def _again(**how):
    return lambda layer, x: checkpoint(layer, x, **how)


def _nested(layer, x):
    return checkpoint(lambda a: checkpoint(layer, a * 1.0, use_reentrant=False) * 1.0, x, use_reentrant=False)


def _in_sequence(layer, x):
    return checkpoint_sequential([layer, nn.Identity()], 2, x, use_reentrant=False)


def _train(layer, run, steps=2, forwards=1):
    """All that can be told of some steps: gradients, results, state, attributes."""
    layer = copy.deepcopy(layer)
    resilin.manual_seed(7)
    told = []
    for step in range(steps):
        x = ((resilin.arange(12.0).reshape(4, 3) + step) ** 1.5).requires_grad_()
        results = [run(layer, x) for _ in range(forwards)]
        after_forward = [t.clone() for t in layer.state_dict().values()]
        sum((r.square().sum() for r in results), resilin.zeros(())).backward()
        told += [x.grad, *results, *after_forward, *layer.state_dict().values(), *(p.grad for p in layer.parameters())]
        told += [resilin.tensor(each.calls) for each in layer.modules() if isinstance(each, Averages)]
        layer.zero_grad()
    return [each.detach().clone() for each in told if each is not None]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "run",
    [
        _again(use_reentrant=False),
        _again(use_reentrant=False, early_stop=False),
        _again(use_reentrant=True),
        _nested,
        _in_sequence,
    ],
    ids=["early stop", "no early stop", "reentrant", "nested", "sequential"],
)
def test_a_checkpoint_leaves_state_and_gradients_as_they_are_without_it(name, run):
    resilin.manual_seed(0)
    layer = LAYERS[name]()
    for one, other in zip(_train(layer, _plainly), _train(layer, run), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_every_one_of_several_forwards_is_run_again_with_its_own_state(name, reentrant):
    resilin.manual_seed(0)
    layer = LAYERS[name]()
    plain, again = (_train(layer, run, forwards=3) for run in (_plainly, _again(use_reentrant=reentrant)))
    for one, other in zip(plain, again, strict=True):
        assert one.allclose(other, rtol=1e-5)  # gradients come in another order


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_batch_norm_that_ends_a_segment_counts_its_batch_once(early, reentrant):
    norm = nn.BatchNorm1d(2)
    x = resilin.tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True)
    with set_checkpoint_early_stop(early):
        checkpoint(norm, x, use_reentrant=reentrant).square().sum().backward()
    assert norm.num_batches_tracked.item() == 1  # PyTorch: 2
    assert norm.running_mean.tolist() == pytest.approx([0.2, 0.4])  # PyTorch: [0.38, 0.76]
    assert norm.running_var.tolist() == pytest.approx([1.1, 1.7])  # PyTorch: [1.19, 2.33]


def test_retained_graphs_and_second_derivatives_move_nothing_either():
    norm, x = nn.BatchNorm1d(2).double(), resilin.tensor([[1.0, 2.0], [3.0, 7.0], [4.0, 4.0]]).double().requires_grad_()
    y = checkpoint(lambda a: norm(a).exp(), x, use_reentrant=False)
    y.sum().backward(retain_graph=True)
    (first,) = resilin.autograd.grad(y.sum(), x, create_graph=True)
    first.square().sum().backward()
    assert norm.num_batches_tracked.item() == 1


def test_a_second_run_that_fails_leaves_the_state_alone():
    norm, turns = nn.BatchNorm1d(2), iter((False, True))

    def fails(a):
        a = norm(a)
        if next(turns):
            raise KeyError("the second run")
        return a.exp()

    y = checkpoint(fails, resilin.tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True), use_reentrant=False)
    with pytest.raises(KeyError, match="the second run"):
        y.sum().backward()
    assert norm.num_batches_tracked.item() == 1
    assert norm.running_mean.tolist() == pytest.approx([0.2, 0.4])


def test_state_in_the_graph_is_as_it_was_with_its_history():
    def run(step):
        weight = resilin.tensor([2.0], requires_grad=True)
        state = resilin.zeros(1)

        def forward(x):
            state.mul_(0.5).add_(x * weight)
            return state.clone() * x

        x = resilin.tensor([3.0], requires_grad=True)
        (step(forward, x) + state).sum().backward()
        return state.item(), weight.grad.item(), x.grad.item()

    plain = run(lambda f, x: f(x))
    assert plain == (6.0, 12.0, 14.0)
    assert run(lambda f, x: checkpoint(f, x, use_reentrant=False)) == plain


def test_what_was_saved_of_the_state_before_stays_valid():
    state, x = resilin.ones(1), resilin.tensor([3.0], requires_grad=True)

    def forward(a):
        state.add_(1)
        return a.exp()

    between = checkpoint(forward, x, use_reentrant=False)
    (between * state).sum().backward()  # the product saved `state` after the write
    assert x.grad.item() == pytest.approx(2 * 20.085537, rel=1e-6)
    assert state.item() == 2


def test_lazy_modules_are_made_once_within_a_checkpoint():
    lazy = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    x = resilin.ones(3, 4, requires_grad=True)
    checkpoint(lazy, x, use_reentrant=False).sum().backward()
    assert lazy[1].num_batches_tracked.item() == 1
    assert (lazy[0].in_features, lazy[1].num_features) == (4, 2)
    assert lazy[0].weight.grad.shape == (2, 4)


def test_copies_of_state_go_with_the_graph():
    norm = nn.BatchNorm1d(2)
    x = resilin.ones(3, 2, requires_grad=True)

    def forward(a):
        made = resilin.zeros(3, 2)
        made[1] = 1.0  # memory of the run itself: nothing of it is kept
        return norm(a) + made

    gc.collect()
    for _ in range(3):
        y = checkpoint(forward, x, use_reentrant=False)
        frame = y.grad_fn.frame
        kept = [type(key) for key in frame.log._entries]
        assert len(kept) == 3  # two statistics and the counter
        y.sum().backward()
        assert not frame.log._entries


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("inner", ["both", "last"])
def test_a_checkpoint_inside_one_that_ended_before_it_began_again_finds_its_own_state(early_stop, inner):
    class Counts(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * x * self.calls

    def kept(function, x):
        return checkpoint(function, x, use_reentrant=False, early_stop=early_stop)

    module, x = Counts(), resilin.ones(2, requires_grad=True)
    first = (lambda x: kept(module, x)) if inner == "both" else module
    kept(lambda x: kept(module, first(x)), x).sum().backward()
    assert x.grad.tolist() == [8.0, 8.0]  # of 2 * (x * x) ** 2: the second call counts 2, in both runs
    assert module.calls == 2
