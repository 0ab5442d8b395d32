"""A state that was saved by another kind of optimizer, or with another model, is refused before anything is changed."""

import pytest

import resilin
from resilin import checkpoint, nn, optim
from resilin.errors import CheckpointMismatch, UsageError

KINDS = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "AdamW": {},
    "Adamax": {},
    "LBFGS": {},
    "Lion": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
    "SparseAdam": {},
}
ALIKE = {("RAdam", "AdamW"), ("SparseAdam", "AdamW"), ("SparseAdam", "RAdam")}  # the same means under the same names


def trained(name, steps=1, shape=(3, 2), **options):
    """An optimizer of two parameters, after some steps."""
    resilin.manual_seed(3)
    params = [resilin.randn(shape).requires_grad_() for _ in range(2)]
    optimizer = getattr(optim, name)(params, **{**KINDS.get(name, {}), **options})

    def closure():
        optimizer.zero_grad()
        loss = sum((param * param).sum() for param in params)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


def held(optimizer):
    """All that a state says, for comparisons."""
    return repr(optimizer.state_dict())


@pytest.mark.parametrize("here", KINDS)
def test_every_kind_is_told_from_every_other(here):
    saved = {name: trained(name).state_dict() for name in KINDS}
    for steps in (0, 1):
        fresh = trained(here, steps=steps)
        before = held(fresh)
        for name, state in saved.items():
            if name != here and (name, here) not in ALIKE:
                words = f"{here}.load_state_dict: .*saved by an optimizer of another kind"
                with pytest.raises(UsageError, match=words):
                    fresh.load_state_dict(state)
                assert held(fresh) == before, name
        for name in (here, *(one for one, other in ALIKE if other == here)):
            fresh.load_state_dict(saved[name])


def test_the_kind_is_named():
    with pytest.raises(UsageError, match=r"another kind, as SGD is: its groups have dampening, momentum, nesterov$"):
        trained("AdamW").load_state_dict(trained("SGD").state_dict())
    with pytest.raises(UsageError, match="of parameter 0 there is step, exp_avg, and no exp_avg_sq, which AdamW needs"):
        trained("AdamW").load_state_dict(trained("Lion").state_dict())


def test_adam_and_adamw_take_each_others_state_and_adamw_stays_decoupled():
    adam, adamw = trained("Adam", weight_decay=0.1), trained("AdamW")
    adamw.load_state_dict(adam.state_dict())
    assert adamw.param_groups[0]["weight_decay"] == 0.1
    assert adamw.param_groups[0]["decoupled_weight_decay"] is True
    trained("Adam").load_state_dict(adamw.state_dict())


def test_options_of_schedulers_users_and_other_versions_are_of_no_kind():
    saved, fresh = trained("Adam"), trained("Adam", steps=0)
    optim.lr_scheduler.OneCycleLR(saved, max_lr=0.1, total_steps=3)
    saved.param_groups[0]["layer"] = "head"
    state = saved.state_dict()
    del state["param_groups"][0]["amsgrad"], state["param_groups"][0]["decoupled_weight_decay"]
    fresh.load_state_dict(state)
    assert fresh.param_groups[0]["layer"] == "head"
    assert fresh.param_groups[0]["amsgrad"] is False


def test_an_option_of_another_kind_that_the_user_has_given_the_group_is_no_sign():
    p, q = (resilin.ones(2).requires_grad_() for _ in range(2))
    one, other = (optim.Adam([{"params": [each], "momentum": 0.5}]) for each in (p, q))
    other.load_state_dict(one.state_dict())


def test_an_option_that_a_program_sets_later_is_no_sign():
    saved = trained("Adam")
    saved.param_groups[0].update(momentum=0.5, alpha=2, d=1)  # as other optimizers have them
    trained("Adam").load_state_dict(saved.state_dict())


def test_older_states_of_another_kind_are_told_too():
    state = trained("SGD").state_dict()
    for name in ("maximize", "foreach", "differentiable", "fused"):
        del state["param_groups"][0][name]
    with pytest.raises(UsageError, match="another kind, as SGD is: its groups have dampening, momentum, nesterov"):
        trained("AdamW").load_state_dict(state)


def test_a_class_of_the_users_takes_its_own_state_and_no_others():
    class Own(optim.Adam):
        def __init__(self, params, warmup=3, **options):
            super().__init__(params, **options)
            self.param_groups[0]["warmup"] = warmup

    one, other = (Own([resilin.ones(2).requires_grad_()]) for _ in range(2))
    other.load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="another kind, as Own is: its groups have warmup"):
        optim.Adam([resilin.ones(2).requires_grad_()]).load_state_dict(one.state_dict())


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "Muon"])
def test_a_state_of_other_shapes_is_refused_when_it_is_loaded(name):
    fresh = trained(name, shape=(2, 3))
    before = held(fresh)
    with pytest.raises(UsageError, match=r"of parameter 0, .* shape \[3, 2\] .* \[2, 3\] here: .* another model"):
        fresh.load_state_dict(trained(name).state_dict())
    assert held(fresh) == before


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RMSprop", "NAdam"])
def test_complex_parameters_take_their_complex_state(name):
    def made():
        return getattr(optim, name)([nn.Parameter(resilin.ones(2, dtype=resilin.complex64))], lr=0.1)

    one, other = made(), made()
    (param,) = one.param_groups[0]["params"]
    (param * param.conj()).real.sum().backward()
    one.step()
    other.load_state_dict(one.state_dict())
    assert held(other) == held(one)


def test_a_parameter_without_a_shape_yet_takes_any():
    layer = nn.LazyLinear(2, bias=False)
    optimizer = optim.Adam(layer.parameters())
    optimizer.load_state_dict(optim_of_one((2, 3)).state_dict())
    layer(resilin.ones(1, 3)).sum().backward()
    optimizer.step()


def optim_of_one(shape):
    p = resilin.ones(shape).requires_grad_()
    p.grad = resilin.ones(shape)
    made = optim.Adam([p])
    made.step()
    return made


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        (trained("SGD"), lambda: trained("AdamW", steps=0), "optimizer: AdamW.load_state_dict: .*another kind, as SGD"),
        (trained("AdamW"), lambda: trained("AdamW", 0, (2, 3)), r"optimizer: .* exp_avg .* \[3, 2\] .* another model"),
        (trained("AdamW"), lambda: optim_of_one((3, 2)), "optimizer: Adam.load_state_dict: groups of .2. parameters"),
    ],
)
def test_a_checkpoint_of_another_optimizer_changes_nothing(tmp_path, saved, here, words):
    checkpoint.save(tmp_path, {"optimizer": saved, "first": resilin.ones(3)})
    state = {"optimizer": here(), "first": resilin.zeros(3)}
    before = held(state["optimizer"])
    for strict in (True, False):
        with pytest.raises(CheckpointMismatch, match=f"different: {words}.* Nothing was changed"):
            checkpoint.load(tmp_path, state, strict=strict)
    assert state["first"].tolist() == [0, 0, 0]
    assert held(state["optimizer"]) == before


def test_a_state_that_hooks_make_fit_is_loaded(tmp_path):
    checkpoint.save(tmp_path, {"optimizer": trained("SGD")})
    fresh = trained("AdamW")
    fresh.register_load_state_dict_pre_hook(lambda optimizer, state: trained("AdamW", steps=2).state_dict())
    checkpoint.load(tmp_path, {"optimizer": fresh})
    assert float(fresh.state_dict()["state"][0]["step"]) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda state: state.update(param_groups={0: state["param_groups"][0]}),
            r'"param_groups"\] must be a list of dicts',
        ),
        (lambda state: state.update(param_groups=[5]), r"param_groups\[0\] must be a dict, got 5"),
        (lambda state: state["param_groups"][0].pop("params"), r'param_groups\[0\] has no "params"'),
        (lambda state: state["param_groups"][0].update(params=3), r'param_groups\[0\]\["params"\] must be a list .* 3'),
        (
            lambda state: state["param_groups"][0].update(params=[[0], 1]),
            r'"params"\]\[0\] must be a parameter\'s number',
        ),
        (
            lambda state: state.update(state=[1, 2]),
            r'state\["state"\] must be a dict of entries by parameter, got \[1, 2\]',
        ),
        (lambda state: state["state"].update({0: 5}), r"state\[0\] must be a dict of a parameter's state, got 5"),
        (lambda state: state["state"][0].update(exp_avg=[1.0]), r"of parameter 0, exp_avg must be a tensor .* \[1.0\]"),
        (lambda state: state["state"][1].update(exp_avg=None), r"of parameter 1, exp_avg must be a tensor .* None"),
        (
            lambda state: state["state"][0].update(exp_avg_sq=resilin.ones(2, dtype=resilin.complex64)),
            r"of parameter 0, exp_avg_sq must be a tensor of floating point numbers",
        ),
        (
            lambda state: state["state"][0].update(exp_avg=resilin.ones(2, dtype=resilin.int64)),
            r"of parameter 0, exp_avg must be a tensor of floating point numbers",
        ),
        (lambda state: state["state"][0].update(step="2"), r"of parameter 0, step must be a number, .* '2'"),
        (lambda state: state["state"][1].update(step=None), r"of parameter 1, step must be a number, .* None"),
    ],
)
def test_a_tree_that_is_no_state_is_refused_by_name_and_changes_nothing(change, words):
    state, fresh = trained("AdamW").state_dict(), trained("AdamW")
    before = held(fresh)
    change(state)
    with pytest.raises(UsageError, match=f"AdamW.load_state_dict: .*{words}"):
        fresh.load_state_dict(state)
    assert held(fresh) == before


NO_NUMBER = [None, "x", [0.1], resilin.ones(2)]


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        *((name, "lr", [*NO_NUMBER, -1, float("nan")]) for name in KINDS),
        *((name, "betas", [3, None, (0.9,), (0.9, None), (0.9, 1.0)]) for name in ("AdamW", "Adamax", "Lion", "NAdam")),
        *((name, "betas", [3, (0.9, "x")]) for name in ("RAdam", "SparseAdam")),
        ("SGD", "momentum", [*NO_NUMBER, -1]),
        ("SGD", "dampening", NO_NUMBER),
        ("SGD", "weight_decay", [*NO_NUMBER, -1]),
        ("AdamW", "eps", [*NO_NUMBER, -1]),
        ("ASGD", "t0", NO_NUMBER),
        ("ASGD", "lambd", NO_NUMBER),
        ("ASGD", "alpha", NO_NUMBER),
        ("Adadelta", "rho", [*NO_NUMBER, 2]),
        ("Adafactor", "eps", [3, (None,), (1e-3, None), (None, -1)]),
        ("Adafactor", "beta2_decay", [*NO_NUMBER, 1]),
        ("Adafactor", "d", [*NO_NUMBER, 0]),
        ("LBFGS", "max_iter", [*NO_NUMBER, 2.5, -1]),
        ("LBFGS", "max_eval", NO_NUMBER),
        ("LBFGS", "history_size", [*NO_NUMBER, 2.5]),
        ("LBFGS", "tolerance_grad", NO_NUMBER),
        ("LBFGS", "line_search_fn", ["x"]),
        ("Muon", "ns_steps", [*NO_NUMBER, 2.5, 100]),
        ("Muon", "ns_coefficients", [3, (1.0, 2.0)]),
        ("Muon", "eps", NO_NUMBER),
        ("Rprop", "etas", [3, None, (0.5, 0.9), (0.5, "x")]),
        ("Rprop", "step_sizes", [3, None, (1.0,)]),
    ],
)
def test_options_that_the_constructor_refuses_are_refused_of_a_state_and_change_nothing(name, option, values):
    for value in values:
        state, fresh = trained(name).state_dict(), trained(name)
        before = held(fresh)
        state["param_groups"][0][option] = value
        words = rf"^{name}.load_state_dict: param_groups\[0\]: {name}: {option} (must|given as)"
        with pytest.raises(UsageError, match=words):
            fresh.load_state_dict(state)
        with pytest.raises(UsageError, match=words):
            fresh.check_loadable(state)
        assert held(fresh) == before


def test_the_group_with_a_bad_option_is_named():
    def made():
        return optim.SGD([{"params": [resilin.ones(1).requires_grad_()], "lr": lr} for lr in (0.1, 0.2)])

    state, fresh = made().state_dict(), made()
    state["param_groups"][1]["lr"] = "fast"
    with pytest.raises(
        UsageError, match=r"^SGD.load_state_dict: param_groups\[1\]: SGD: lr must be a number, got 'fast'"
    ):
        fresh.load_state_dict(state)
    assert [group["lr"] for group in fresh.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "LBFGS"])
def test_a_rate_that_a_schedule_has_brought_to_0_is_loaded(name):
    """Rounding may leave it below 0; a divided optimizer is made anew with the group's options, too."""
    one, other = trained(name), trained(name)
    schedule = optim.lr_scheduler.LinearLR(one, start_factor=0.99, end_factor=0, total_iters=52)
    for _ in range(52):
        schedule.step()
    assert abs(one.param_groups[0]["lr"]) < 1e-15
    other.load_state_dict(one.state_dict())
    assert other.param_groups[0]["lr"] == one.param_groups[0]["lr"]
    type(one)([{**group, "params": [resilin.ones(2, 2).requires_grad_()]} for group in one.param_groups])


def test_rates_and_betas_that_are_tensors_are_loaded_also_from_checkpoints(tmp_path):
    def made(lr):
        param = resilin.ones(2).requires_grad_()
        return optim.AdamW([param], lr=resilin.tensor(lr), betas=(resilin.tensor(0.5), 0.9))

    one, other, third = made(0.25), made(0.5), made(0.5)
    other.load_state_dict(one.state_dict())
    checkpoint.save(tmp_path, {"optimizer": one})
    checkpoint.load(tmp_path, {"optimizer": third})
    assert [float(each.param_groups[0]["lr"]) for each in (other, third)] == [0.25, 0.25]


def test_options_of_other_versions_of_a_program_are_taken_as_they_are():
    """A state of a GPU has capturable=True; foreach and fused are of the one who saved it."""
    state, fresh = trained("AdamW").state_dict(), trained("AdamW")
    state["param_groups"][0].update(capturable=True, fused=True, foreach=True, initial_lr=None, max_momentum="x")
    fresh.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: {str(key): entry for key, entry in state.items()}, r"\['0', '1'\].*JSON .*int\(key\)"),
        (lambda state: {**state, 2: {}}, r"\[2\], which are in no group of it$"),
        (lambda state: {**state, -1: {}}, r"\[-1\], which are in no group of it$"),
    ],
)
def test_entries_of_no_parameter_are_refused_and_change_nothing(change, words):
    state, fresh = trained("AdamW").state_dict(), trained("AdamW")
    before = held(fresh)
    state["state"] = change(state["state"])
    for call in (fresh.check_loadable, fresh.load_state_dict):
        with pytest.raises(
            UsageError, match=rf"^AdamW.load_state_dict: the state has entries of the parameters {words}"
        ):
            call(state)
    assert held(fresh) == before


def test_entries_that_a_program_keeps_under_names_of_its_own_are_carried_along():
    state, fresh = trained("AdamW").state_dict(), trained("AdamW")
    state["state"]["epoch"] = {"of": 3}
    fresh.load_state_dict(state)
    assert fresh.state_dict()["state"]["epoch"] == {"of": 3}


@pytest.mark.parametrize(
    ("here", "there"), [((3, 2), (4, 2)), ((3, 2), (3, 3)), ((3,), (4,)), ((3, 2), (6,)), ((6,), (3, 2))]
)
@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
def test_the_state_of_another_model_is_refused_and_nothing_is_changed(name, here, there):
    optimizer = trained(name, shape=here)
    before = held(optimizer)
    with pytest.raises(UsageError, match=r"it was saved with another model|which Adafactor needs"):
        optimizer.load_state_dict(trained(name, shape=there).state_dict())
    assert held(optimizer) == before


def test_lbfgs_refuses_the_state_of_a_model_with_more_elements():
    optimizer = trained("LBFGS", shape=(3, 2))
    before = held(optimizer)
    with pytest.raises(UsageError, match=r"d has the shape .* in the state, .* it was saved with another model"):
        optimizer.load_state_dict(trained("LBFGS", shape=(4, 2)).state_dict())
    assert held(optimizer) == before
