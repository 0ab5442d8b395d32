"""What readers get of what a worker publishes."""

import pytest
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin import nn

LARGE = 40_000  # numbers, so that tensors are lent


def state(value: float, parts: int = 3) -> dict[str, torch.Tensor]:
    return {f"part{number}": torch.full((LARGE,), value) for number in range(parts)}


@on_workers(3)
def test_readers_get_what_was_published(me: Me) -> None:
    if me.rank == 0:
        handle = rpc.publish(state(7.0), to=["worker1", "worker2"], name="policy")
        handle.wait()
        assert handle.version == 1
        assert handle.readers() == {"worker1": 1, "worker2": 1}
    else:
        version, found = rpc.subscribe("policy", src="worker0").wait()
        assert version == 1
        assert list(found) == ["part0", "part1", "part2"]
        assert all(bool((part == 7).all()) for part in found.values())


@on_workers(2)
def test_whoever_subscribes_is_told_of_later_versions(me: Me) -> None:
    if me.rank == 1:
        subscription = rpc.subscribe("policy", src="worker0")
        assert subscription.latest() == (0, {})
        assert subscription.version == 0
    me.meet("subscribed")
    if me.rank == 0:
        weights = state(1.0)
        rpc.publish(weights, name="policy").wait()
        for part in weights.values():
            part.add_(1)
        rpc.publish(weights, name="policy").wait()
    else:
        version, found = subscription.wait(2)
        assert version == 2
        assert float(found["part1"].min()) == float(found["part1"].max()) == 2
    me.meet("done")


@on_workers(2)
def test_late_subscribers_get_the_newest_version_alone(me: Me) -> None:
    if me.rank == 0:
        weights = state(1.0)
        for _ in range(3):
            rpc.publish(weights, name="late")
            for part in weights.values():
                part.add_(1)
    me.meet("published")
    if me.rank == 1:
        version, found = rpc.subscribe("late", src=0).wait()
        assert version == 3
        assert float(found["part0"].max()) == 3
    me.meet("done")


@on_workers(2)
def test_held_versions_stay_as_they_were(me: Me) -> None:
    weights = state(1.0)
    subscription = rpc.subscribe("held", src="worker0")
    held = []
    me.meet("subscribed")
    for turn in range(1, 5):
        if me.rank == 0:
            rpc.publish(weights, name="held").wait()
            for part in weights.values():
                part.add_(1)
        held.append(subscription.wait(turn))
        assert held[-1][0] == turn
        me.meet(f"turn{turn}")
    for version, found in held:
        for part in found.values():
            assert float(part.min()) == float(part.max()) == version


@on_workers(2)
def test_readers_cannot_write(me: Me) -> None:
    if me.rank == 0:
        rpc.publish(state(1.0), to=[1], name="read only").wait()
    else:
        _, found = rpc.subscribe("read only", src=0).wait()
        with pytest.raises(RuntimeError, match="read-only"):
            found["part0"].add_(1)
        with pytest.raises(ValueError, match="read-only"):
            found["part0"].numpy()[0] = 1
        found["part0"] = None  # the dict is the caller's own
        assert rpc.subscribe("read only", src=0).latest()[1]["part0"] is not None
    me.meet("done")


@on_workers(2)
def test_nobody_writes_small_tensors_either_not_even_at_the_publisher(me: Me) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    if me.rank == 0:
        small = {"one": torch.ones(1), "half": torch.ones(3, dtype=torch.bfloat16), "turned": base.t(), "row": base[1]}
        rpc.publish(small, to=[1], name="small").wait()
    me.meet("published")
    policy = rpc.subscribe("small", src=0)
    with pytest.raises(TypeError, match="expected the number of a version, got '1'"):
        policy.wait("1")  # type: ignore[arg-type]
    _, found = policy.wait(1)
    before = {key: value.tolist() for key, value in found.items()}
    for key, value in found.items():
        for write in (lambda x: x.add_(1), lambda x: x.detach().zero_(), lambda x: x.copy_(x + 1)):
            with pytest.raises(RuntimeError, match="read-only"):
                write(value)
        if key != "half":
            with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
                value.numpy().flags.writeable = True
    assert {key: value.tolist() for key, value in policy.latest()[1].items()} == before
    assert found["turned"].stride() == (1, 4)
    me.meet("done")


@on_workers(2)
def test_modules_load_what_is_published(me: Me) -> None:
    torch.manual_seed(me.rank)
    model = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 2))
    if me.rank == 0:
        rpc.publish(model.state_dict(), name="model")
        me.meet("published")
        expected = model.state_dict()
        for key, value in rpc.rpc_sync("worker1", loaded_state, timeout=20).items():
            assert torch.equal(value, expected[key]), key
    else:
        me.meet("published")
        _, found = rpc.subscribe("model", src="worker0").wait()
        model.load_state_dict(found)
        LOADED.append(model.state_dict())
        until(lambda: not LOADED)


LOADED: list[dict[str, torch.Tensor]] = []


def loaded_state() -> dict[str, torch.Tensor]:
    until(lambda: LOADED)
    return LOADED.pop()


@on_workers(2)
def test_what_is_no_tensor_comes_too(me: Me) -> None:
    weight = nn.Parameter(torch.ones(LARGE))
    given = {"weight": weight, "step": 12, "nested": {"list": [torch.zeros(3), "text"]}, "empty": torch.zeros(0, 4)}
    if me.rank == 0:
        rpc.publish(given, to=["worker1"], name="things").wait()
    else:
        _, found = rpc.subscribe("things", src="worker0").wait()
        assert found["step"] == 12
        assert found["nested"]["list"][1] == "text"
        assert found["empty"].shape == (0, 4)
        assert not found["weight"].requires_grad
        with pytest.raises(RuntimeError, match="read-only"):
            found["nested"]["list"][0].add_(1)
    me.meet("done")


@on_workers(2)
def test_tensors_that_share_memory_share_it_at_the_readers(me: Me) -> None:
    whole = torch.arange(2 * LARGE, dtype=torch.float32)
    if me.rank == 0:
        rpc.publish({"whole": whole, "half": whole[LARGE:], "again": whole}, to=[1], name="views").wait()
    else:
        _, found = rpc.subscribe("views", src=0).wait()
        assert found["half"].data_ptr() == found["whole"].data_ptr() + 4 * LARGE
        assert found["again"] is found["whole"] or found["again"].data_ptr() == found["whole"].data_ptr()
    me.meet("done")


@on_workers(2)
def test_writes_of_the_bare_memory_do_not_show(me: Me) -> None:
    if me.rank == 0:
        weight = torch.ones(LARGE)
        bare = weight.numpy()  # before it is published: nobody is told of its writes
        rpc.publish({"weight": weight}, to=[1], name="bare")
        bare[:] = 5
        me.meet("written")
        rpc.publish({"weight": weight}, to=[1], name="bare").wait()
        bare[:] = 6
        me.meet("again")
    else:
        me.meet("written")
        subscription = rpc.subscribe("bare", src=0)
        version, found = subscription.wait()
        assert float(found["weight"].min()) == float(found["weight"].max()) == (1 if version == 1 else 5)
        me.meet("again")
        _, found = subscription.wait(2)
        assert float(found["weight"].min()) == float(found["weight"].max()) == 5
    me.meet("done")


@on_workers(2)
def test_a_worker_reads_its_own(me: Me) -> None:
    weight = torch.ones(LARGE)
    rpc.publish({"weight": weight}, name="own")
    weight.fill_(3)
    version, found = rpc.subscribe("own", src=me.rank).wait()
    assert version == 1
    assert float(found["weight"].max()) == 1


@on_workers(2)
def test_versions_are_counted_as_the_publisher_says(me: Me) -> None:
    if me.rank == 0:
        rpc.publish(state(1.0), to=[1], name="counted", version=500).wait()
        assert rpc.publish(state(2.0), to=[1], name="counted").version == 501
        with pytest.raises(ValueError, match="expected a version above 501, the last one, got 501"):
            rpc.publish(state(2.0), name="counted", version=501)
    else:
        assert rpc.subscribe("counted", src=0).wait(501)[0] == 501
    me.meet("done")


@on_workers(2)
def test_a_closed_subscription_takes_nothing_over(me: Me) -> None:
    if me.rank == 1:
        with rpc.subscribe("closed", src=0) as subscription:
            other = rpc.subscribe("closed", src=0)
    me.meet("subscribed")
    if me.rank == 0:
        handle = rpc.publish(state(1.0), name="closed")
        handle.wait()
        assert handle.readers() == {"worker1": 1}  # of the other one
    me.meet("published")
    if me.rank == 1:
        other.close()
        other.close()
        assert other.wait()[0] == 1
        assert subscription.latest()[0] == 1
    else:
        until(lambda: not handle.readers())
        handle.close()
        assert handle.version == 1
    me.meet("done")


@on_workers(3, channels=["inline"])
def test_readers_that_map_nothing_are_sent_stripes(me: Me) -> None:
    check_stripes(me)


@on_workers(3, transports=["zeromq"], channels=["inline"])
def test_stripes_go_through_zeromq(me: Me) -> None:
    check_stripes(me)


def check_stripes(me: Me) -> None:
    from resilin.rpc.published import stripes

    size = stripes.STRIPE_BYTES // 4
    given = {
        "long": torch.arange(2 * size + 11, dtype=torch.float32),
        "small": torch.ones(3, 5),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "none": torch.zeros(0),
        "whole": torch.arange(7),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "step": 4,
    }
    if me.rank == 0:
        handle = rpc.publish(given, to=[1, 2], name="striped", checksum=True)
        given["long"].zero_()
        handle.wait()
        until(lambda: rpc._rref_context_get_debug_info()["num_owner_rrefs"] == "0")
    else:
        _, found = rpc.subscribe("striped", src=0).wait()
        assert torch.equal(found["long"], torch.arange(2 * size + 11, dtype=torch.float32))
        assert list(found) == list(given)
        for key in ("small", "turned", "none", "whole", "half", "scalar"):
            assert found[key].dtype == given[key].dtype
            assert torch.equal(found[key], given[key]), key
        assert found["step"] == 4
        with pytest.raises(RuntimeError, match="read-only"):
            found["long"].add_(1)
    me.meet("done")
