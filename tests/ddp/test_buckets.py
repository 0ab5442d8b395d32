"""The assignment of gradients to buckets."""

from hypothesis import given
from hypothesis import strategies as st

from resilin.ddp import buckets
from resilin.ddp.buckets import ParameterSpec


def specs(*numels: int, kind: str = "float32", itemsize: int = 4) -> list[ParameterSpec]:
    return [ParameterSpec(f"p{i}", n, itemsize, kind) for i, n in enumerate(numels)]


def members(plan: tuple[buckets.BucketSpec, ...]) -> list[list[int]]:
    return [[slot.param for slot in bucket.slots] for bucket in plan]


def test_the_last_registered_parameter_comes_first() -> None:
    assert members(buckets.assign(specs(10, 20, 30))) == [[2, 1, 0]]


def test_the_first_bucket_is_small_and_a_tensor_is_never_cut() -> None:
    plan = buckets.assign(specs(100, 100, 100, 100, 100), caps=(1, 800))
    assert members(plan) == [[4], [3, 2], [1, 0]]


def test_a_tensor_larger_than_the_cap_has_a_bucket_of_its_own_after_what_was_open() -> None:
    plan = buckets.assign(specs(1, 1000, 1), caps=[400])
    assert members(plan) == [[2, 1], [0]]


def test_kinds_never_mix_and_buckets_are_numbered_as_they_complete() -> None:
    params = [
        ParameterSpec("a", 8, 4, "float32"),
        ParameterSpec("b", 8, 8, "float64"),
        ParameterSpec("c", 8, 4, "float32"),
    ]
    plan = buckets.assign(params)
    assert members(plan) == [[1], [2, 0]]
    assert [bucket.kind for bucket in plan] == ["float64", "float32"]


def test_a_given_order_replaces_reverse_registration() -> None:
    assert members(buckets.assign(specs(4, 4, 4), order=[1, 0, 2])) == [[1, 0, 2]]


def test_each_bucket_of_a_kind_has_its_cap_and_later_ones_the_last() -> None:
    assert members(buckets.assign(specs(*[100] * 8), caps=(400, 1200, 800))) == [[7], [6, 5, 4], [3, 2], [1, 0]]


def test_delayed_parameters_come_right_after_the_bucket_they_wait_for() -> None:
    plan = buckets.delay(specs(*[100] * 5), [800], [4, 3, 2, 1, 0], late={4, 0}, until=2)
    assert members(plan) == [[3, 2], [4, 0], [1]]
    assert [bucket.index for bucket in plan] == [0, 1, 2]


def test_no_parameters_give_no_buckets() -> None:
    assert buckets.assign([]) == ()


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([("f4", 4), ("f8", 8), ("f2", 2)])), max_size=40),
    st.lists(st.integers(1, 40_000), min_size=1, max_size=4),
)
def test_every_parameter_has_exactly_one_slot_of_its_size_and_nothing_lies_between(
    sizes: list[tuple[int, tuple[str, int]]], caps: list[int]
) -> None:
    params = [ParameterSpec(f"p{i}", n, item, kind) for i, (n, (kind, item)) in enumerate(sizes)]
    plan = buckets.assign(params, caps)
    assert [bucket.index for bucket in plan] == list(range(len(plan)))
    seen = [slot.param for bucket in plan for slot in bucket.slots]
    assert sorted(seen) == list(range(len(params)))
    for bucket in plan:
        end = 0
        for slot in bucket.slots:
            spec = params[slot.param]
            assert (spec.kind, spec.numel) == (bucket.kind, slot.stop - slot.start)
            assert slot.start == end
            end = slot.stop
        assert end == bucket.numel
