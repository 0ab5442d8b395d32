"""`_assert`, `_check` and its kin, `typename`, `set_deterministic`, and `round(out=)`."""

import pytest

import resilin as torch


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_check", RuntimeError),
        ("_check_index", IndexError),
        ("_check_value", ValueError),
        ("_check_type", TypeError),
        ("_check_not_implemented", NotImplementedError),
    ],
)
def test_a_check_raises_its_exception_with_the_message(name, kind):
    check = getattr(torch, name)
    check(True)
    with pytest.raises(kind, match="told"):
        check(False, lambda: "told")
    with pytest.raises(kind, match="Expected cond to be True"):
        check(False)


def test_checks_take_bools_tensors_and_lengths():
    torch._check_is_size(3, max=3)
    torch._check_tensor_all(torch.tensor([True, True]))
    torch._assert(torch.tensor(True), "fine")
    for wrong in (
        lambda: torch._check_is_size(-1),
        lambda: torch._check_is_size(5, max=3),
        lambda: torch._check_tensor_all(torch.tensor([True, False])),
    ):
        with pytest.raises(RuntimeError):
            wrong()
    with pytest.raises(AssertionError, match="why"):
        torch._assert(torch.tensor(False), "why")
    with pytest.raises(KeyError):
        torch._check_with(KeyError, False, lambda: "k")
    for call in (
        lambda: torch._check(1),
        lambda: torch._check(torch.tensor(True)),
        lambda: torch._check(False, "no function"),
        lambda: torch._check_tensor_all(torch.tensor([1])),
        lambda: torch._check_tensor_all(True),
    ):
        with pytest.raises(TypeError):
            call()


def test_typename_is_the_full_name():
    assert torch.typename(torch.ones(1).double()) == "torch.DoubleTensor"
    assert (torch.typename(3), torch.typename(int), torch.typename("a")) == ("int", "int", "str")
    assert (
        torch.typename(torch.nn.Linear) == torch.typename(torch.nn.Linear(1, 1)) == "resilin.nn.modules.linear.Linear"
    )


def test_set_deterministic_is_the_former_name():
    torch.set_deterministic(True)
    try:
        assert torch.is_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_deterministic(False)
    assert not torch.is_deterministic()


def test_round_writes_to_out():
    out = torch.zeros(0)
    assert torch.round(torch.tensor([1.25, 2.5]), decimals=1, out=out) is out
    assert out.tolist() == pytest.approx([1.2, 2.5])
    with pytest.raises(RuntimeError, match="float32"):
        torch.round(torch.ones(1), out=torch.zeros(1).double())
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.round(torch.ones(1, requires_grad=True), out=torch.zeros(1))


@pytest.mark.parametrize(
    "like", [torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like]
)
def test_creators_like_another_take_its_layout_and_memory_format(like):
    x = torch.zeros(1, 2, 3, 3)
    made = like(x, memory_format=torch.preserve_format, layout=torch.strided)
    assert made.shape == x.shape
    assert like(x, memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)
    assert torch.full_like(x, 2, layout=torch.strided, memory_format=torch.contiguous_format).sum().item() == 36
