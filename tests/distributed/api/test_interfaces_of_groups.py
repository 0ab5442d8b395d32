"""Which of several network interfaces ranks use."""

import socket

import pytest

from resilin._base import interfaces
from resilin.distributed.connections.listener import Endpoint, check_addresses
from resilin.errors import UsageError
from resilin.testing.hosts import NotPermitted, two_hosts
from resilin.testing.job_secret import SECRET
from resilin.testing.ranks import RankProcess

SCRIPT = """
import os
import numpy as np
from resilin import dist
dist.init_process_group(init_method=os.environ["METHOD"], rank=int(os.environ["RANK"]), world_size=2, timeout=20.0)
array = np.ones(300_000, np.float32)
dist.all_reduce(array)
dist.barrier()
print((array == 2).all(), dist.default_group().topology.endpoints[dist.get_rank()].address, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def linked():
    """Two hosts with two links."""
    try:
        with two_hosts(links=2) as pair:
            yield pair
    except NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")


def addresses(hosts, method, *variables):
    """Where each of two ranks, one per host, says that it can be reached."""
    ranks = [
        RankProcess(SCRIPT, {"RANK": str(i), "METHOD": method, "RESILIN_SECRET": SECRET, **own}, host.enter)
        for i, (host, own) in enumerate(zip(hosts, variables or ({}, {}), strict=True))
    ]
    found = []
    for rank in ranks:
        with rank:
            code, out, err = rank.finish()
            assert code == 0, err
            right, address = out.split()
            assert right == "True"
            found.append(address)
    return found


@pytest.mark.multiproc
def test_ranks_use_the_interface_that_leads_to_the_store(linked):
    for link in (0, 1):
        ends = [host.links[link].address for host in linked]
        assert addresses(linked, f"tcp://{ends[0]}:29400") == ends
    linked[0].cut(0)
    ends = [host.links[1].address for host in linked]
    assert addresses(linked, f"tcp://{ends[0]}:29401") == ends, "the one that still reaches the other host"


@pytest.mark.multiproc
def test_the_interface_named_in_the_environment_carries_the_data(linked):
    method = f"tcp://{linked[0].address}:29400"
    second = [host.links[1] for host in linked]
    for variable in ("RESILIN_IFNAME", "GLOO_SOCKET_IFNAME"):
        own = [{variable: link.device, "RESILIN_HOST": "192.0.2.1"} for link in second]
        assert addresses(linked, method, *own) == [link.address for link in second]
    own = [{"RESILIN_HOST": link.address} for link in second]
    assert addresses(linked, method, *own) == [link.address for link in second]


@pytest.mark.multiproc
def test_a_folder_shared_by_two_hosts_needs_the_interface(linked, tmp_path):
    own = [{"RESILIN_IFNAME": host.links[1].device} for host in linked]
    assert addresses(linked, f"file://{tmp_path}/meet", *own) == [host.links[1].address for host in linked]


@pytest.mark.multiproc
def test_an_address_of_loopback_told_to_another_host_is_an_error_that_names_rank_and_variable(linked):
    method = f"tcp://{linked[0].address}:29402"
    variables = {"METHOD": method, "RESILIN_SECRET": SECRET}
    own = [{}, {"RESILIN_IFNAME": "lo"}]
    ranks = [
        RankProcess(SCRIPT, {"RANK": str(rank), **variables, **own[rank]}, host.enter)
        for rank, host in enumerate(linked)
    ]
    for number, rank in enumerate(ranks):
        with rank:
            code, _, err = rank.finish()
        last = err.splitlines()[-1]
        assert code == 1
        assert f"UsageError: init_process_group, rank {number} of 2: ranks are on several hosts, " in last
        assert "but rank 1 (127.0.0.1:" in last
        assert ") gave an address of loopback, which only its own host reaches: there set RESILIN_IFNAME" in last
        assert ("here RESILIN_IFNAME=lo is set" in last) == (number == 1)


@pytest.mark.multiproc
def test_ranks_meet_over_ipv6_global_and_of_the_link(linked):
    ends = [host.links[0].address6 for host in linked]
    assert addresses(linked, f"tcp://[{ends[0]}]:29400") == ends
    for at, host in enumerate(linked, 1):
        device = host.links[1].device
        host.ip("addr", "flush", "dev", device)
        host.ip("addr", "add", f"fe80::{at}/64", "dev", device, "nodad")
    own = [{"RESILIN_IFNAME": host.links[1].device} for host in linked]
    expected = [f"fe80::{at}%{host.links[1].device}" for at, host in enumerate(linked, 1)]
    assert addresses(linked, f"tcp://[{ends[0]}]:29401", *own) == expected


def test_an_interface_that_is_not_there_is_named_with_those_that_are(monkeypatch):
    monkeypatch.setenv("RESILIN_IFNAME", "nosuch0")
    there = ", ".join(name for _, name in socket.if_nameindex())
    with pytest.raises(UsageError, match=f"RESILIN_IFNAME=nosuch0: this host has no such interface; it has {there}"):
        interfaces.own_address()


def test_ranks_of_a_store_on_loopback_stay_on_loopback(monkeypatch):
    monkeypatch.setenv("RESILIN_IFNAME", "nosuch0")
    assert interfaces.own_address(("127.0.0.1", 29400)) == "127.0.0.1"


def test_without_a_word_and_a_way_the_address_is_loopback(monkeypatch):
    for variable in ("RESILIN_IFNAME", "GLOO_SOCKET_IFNAME", "RESILIN_HOST"):
        monkeypatch.delenv(variable, raising=False)
    assert interfaces.own_address() == "127.0.0.1"
    monkeypatch.setenv("RESILIN_HOST", "192.0.2.7")
    assert interfaces.own_address() == "192.0.2.7"
    assert interfaces.address_of("lo") == "127.0.0.1"


def test_an_address_of_the_link_is_used_over_the_own_interface():
    lo = socket.if_nametoindex("lo")
    assert interfaces.socket_address("fe80::1%eth0", 5, "fe80::2%lo") == ("fe80::1", 5, 0, lo)
    assert interfaces.socket_address("fe80::1%lo", 5) == ("fe80::1", 5, 0, lo)
    assert interfaces.socket_address("fd00::1", 5, "fe80::2%lo") == ("fd00::1", 5)
    assert interfaces.socket_address("10.0.0.1", 5) == ("10.0.0.1", 5)


def test_addresses_of_loopback_are_right_where_all_ranks_are_on_one_host():
    def card(host, address):
        return Endpoint(host, "", address, 4000, False).describe()

    check_addresses([card("a", "127.0.0.1"), card("a", "::1")])
    check_addresses([card("a", "192.0.2.1"), card("b", "192.0.2.2")])
    with pytest.raises(UsageError, match=r"but rank 0 \(127.0.0.1:4000\), rank 2 \(\[::1\]:4000\) gave an address"):
        check_addresses([card("a", "127.0.0.1"), card("b", "192.0.2.2"), card("c", "::1")])
