"""Tests the network state that each server gets, and that no NIC is promised more than it has."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.agent.contract.capabilities import Capabilities, TrafficControl
from placewire.agent.contract.entries import ACKNOWLEDGEMENT_QUEUE, DEFAULT_QUEUE
from placewire.agent.contract.state import DesiredState, NicFacts
from placewire.agent.reconcile.refusals_nics import sysctl_refusals
from placewire.controller.compile import deliverable
from placewire.controller.compile.network import compile_network, larger_frames
from placewire.controller.compile.queues import JOB_QUEUE
from placewire.controller.compile.ranks import rank_specs
from placewire.controller.compile.transfers import FIRST_TCP_PORT, promises
from placewire.controller.compile.units import burst_bits, wire_rate
from placewire.optimizer.cluster_plan.payload import payload_capacity, payload_fraction
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.job import one_to_one
from placewire.optimizer.network.script_allocation import allocate, even_traffic
from placewire.optimizer.placement import Placement
from tests.controller.plans import capabilities, placement, plan, plan_document

Rates = tuple[tuple[str, str, str, float], ...]


def _compiled(
    rates: Rates,
    *,
    set_queue: bool = False,
    document: dict[str, Any] | None = None,
    sharing: SharingName = "strict",
) -> dict[str, DesiredState]:
    of = plan(document)
    names = [server.name for server in of.cluster.servers]
    able = {name: capabilities(set_queue_honoured=set_queue) for name in names}
    return compile_network(of, placement(of, rates, sharing), able, dict.fromkeys(names, 7))


def test_full_frames_carry_what_iperf3_counts() -> None:
    # 1448 bytes of payload in a frame that HTB counts as 1514: iperf3 sees 0.956 of the HTB rate.
    assert payload_fraction() == pytest.approx(0.9564, abs=1e-4)
    assert wire_rate(payload_fraction() * 50e6) == 50_000_000
    assert payload_capacity(50e6) < payload_fraction() * 50e6
    assert burst_bits(1e6) >= 4 * 1514 * 8


def _with_mtu(mtu_bytes: int, rails: str = "ab") -> dict[str, Any]:
    document = plan_document()
    for server in document["cluster"]["servers"]:
        for nic in server["nics"]:
            if nic["rail"] in rails:
                nic["mtu"] = mtu_bytes
    return document


def test_larger_frames_carry_more_of_the_same_rate() -> None:
    of = plan(_with_mtu(9000, "b"))
    small, large = of.payload_cluster.nic_rates[0]
    assert small == pytest.approx(50e6 * 0.96 * 1448 / 1514)
    assert large == pytest.approx(50e6 * 0.96 * 8948 / 9014)
    assert wire_rate(8948e3, 9000) == 9014e3


def test_each_rail_is_compiled_with_its_own_mtu() -> None:
    rates = (("s1", "s3", "a", 20e6), ("s1", "s3", "b", 20e6))
    state = _compiled(rates, document=_with_mtu(9000, "b"))["s1"]
    assert {b.nic: b.mtu_bytes for b in state.bridges} == {"nic0": 1500, "nic1": 9000}
    pair = {q.nic: q for q in state.queues if q.queue_id > ACKNOWLEDGEMENT_QUEUE}
    assert pair["nic0"].max_bits_per_second == round(20e6 * 1514 / 1448)
    assert pair["nic1"].max_bits_per_second == round(20e6 * 9014 / 8948)
    # The burst is one whole frame and not several: four would take 14 ms at this rate.
    assert pair["nic0"].burst_bits == 8 * 4 * 1514
    assert 8 * 9014 < pair["nic1"].burst_bits < 8 * 1.6 * 9014


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job"])
def test_all_that_is_promised_of_a_nic_with_large_frames_fits_it(sharing: SharingName) -> None:
    of = plan(_with_mtu(9000))
    whole = of.payload_cluster.nic_rates[0, 0]
    rates = (("s1", "s2", "a", 0.5 * whole), ("s1", "s3", "a", 0.5 * whole))
    state = _compiled(rates, sharing=sharing, document=_with_mtu(9000))["s1"]
    queues = [q for q in state.queues if q.nic == "nic0"]
    # The job is promised 0.96 of the NIC (under `job` sharing 0.8 of that) and everything else the
    # rest: nothing is lost between payload and wire.
    assert sum(q.min_bits_per_second for q in queues) == pytest.approx(50e6, rel=1e-6)
    most = 0.8 if sharing == "job" else 1.0
    job = sum(q.min_bits_per_second for q in queues if q.queue_id > ACKNOWLEDGEMENT_QUEUE)
    assert job == pytest.approx(most * 0.96 * 50e6, rel=1e-6)


def test_nics_that_could_carry_larger_frames_than_planned_are_named() -> None:
    jumbo = NicFacts(
        name="nic0", mac="02:00:00:00:00:01", mtu_bytes=9000, up=True, rdma=False, driver=None,
        speed_bits_per_second=None, addresses=(), bridge=None,
    )  # fmt: skip
    large = capabilities().model_copy(update={"nics": (jumbo,)})
    able = {"s1": large, "s2": large, "s3": capabilities()}
    (note,) = larger_frames(plan(), able)
    assert note.startswith("s1 nic0, s2 nic0 could") and "MTU 9000" in note
    assert larger_frames(plan(_with_mtu(9000)), able) == ()


def test_of_many_nics_notes_and_doubts_name_a_few() -> None:
    of = plan(plan_document(64, rate="30Gbit"))
    names = [server.name for server in of.cluster.servers]
    nics = tuple(
        NicFacts(
            name=name, mac="02:00:00:00:00:01", mtu_bytes=9000, up=True, rdma=True, driver=None,
            speed_bits_per_second=None, addresses=(), bridge=None,
        )
        for name in ("nic0", "nic1")
    )  # fmt: skip
    able = dict.fromkeys(names, capabilities().model_copy(update={"nics": nics}))
    rates = tuple((name, "s1" if name != "s1" else "s2", r, 1e9) for name in names for r in "ab")
    desired = compile_network(of, placement(of, rates), able, dict.fromkeys(names, 1))
    notes = (*larger_frames(of, able), *deliverable.doubts(of, able, desired))
    assert len(notes) == 3
    for note in notes:
        assert note.startswith("s1 nic0") and "… s64 nic1" in note and len(note) < 400


def test_a_pair_gets_queue_flow_and_classifier_on_its_own_rail() -> None:
    state = _compiled((("s1", "s3", "b", 20e6),))["s1"]
    assert [s.nic for s in state.shapers] == ["nic1"]
    pair = next(q for q in state.queues if q.queue_id > ACKNOWLEDGEMENT_QUEUE)
    assert (pair.nic, pair.max_bits_per_second) == ("nic1", wire_rate(20e6))
    assert pair.min_bits_per_second == pair.max_bits_per_second
    assert [(f.bridge, f.destination, f.queue_id) for f in state.flows] == [
        ("pw-nic1", "10.7.1.3", pair.queue_id)
    ]
    assert {(c.destination, c.queue_id) for c in state.classifiers} == {
        (None, ACKNOWLEDGEMENT_QUEUE), ("10.7.1.3", pair.queue_id),
    }  # fmt: skip


def test_a_datapath_that_honours_set_queue_needs_no_classifier() -> None:
    state = _compiled((("s1", "s3", "b", 20e6),), set_queue=True)["s1"]
    assert state.classifiers == ()
    assert [(flow.destination, flow.queue_id) for flow in state.flows] == [
        ("10.7.1.3", 4),
        (None, ACKNOWLEDGEMENT_QUEUE),
    ]
    assert {bridge.datapath for bridge in state.bridges} == {"system"}


def test_a_server_without_rates_is_joined_but_not_shaped() -> None:
    state = _compiled((("s1", "s3", "b", 20e6),))["s2"]
    assert (state.shapers, state.queues, state.flows) == ((), (), ())
    assert len(state.bridges) == len(state.addresses) == len(state.rules) == 2


def test_every_server_is_told_what_becomes_of_drift() -> None:
    document = plan_document()
    assert {state.drift for state in _compiled((), document=document).values()} == {"heal"}
    document["network"] = {"drift": "report"}
    assert {state.drift for state in _compiled((), document=document).values()} == {"report"}


def test_every_address_moves_to_its_bridge_and_has_its_own_table() -> None:
    state = _compiled(())["s2"]
    assert {a.key for a in state.addresses} == {"pw-nic0 10.7.0.2/24", "pw-nic1 10.7.1.2/24"}
    assert len({rule.table for rule in state.rules}) == 2
    for rule in state.rules:
        route = next(r for r in state.routes if r.table == rule.table)
        assert f"{route.source}/32" == rule.source
        assert ipaddress.ip_address(route.source) in ipaddress.ip_network(route.destination)


def test_one_digest_for_the_decision_and_another_for_another() -> None:
    one, again = _compiled((("s1", "s3", "b", 20e6),)), _compiled((("s1", "s3", "b", 20e6),))
    other = _compiled((("s1", "s3", "b", 21e6),))
    assert len({state.plan_digest for state in one.values()}) == 1
    assert one == again
    assert one["s2"].plan_digest != other["s2"].plan_digest


@st.composite
def _admissible(draw: st.DrawFn) -> Rates:
    """Any rates that use a NIC up to its payload capacity."""
    capacity = plan().payload_cluster.nic_rates
    servers, rails, rates = ["s1", "s2", "s3"], ["a", "b"], []
    for s, source in enumerate(servers):
        for r, rail in enumerate(rails):
            share = draw(st.floats(0, 1))
            others = [d for d in servers if d != source]
            for destination, part in zip(others, (share, 1 - share), strict=True):
                # The allocator gives a pair nothing or at least its floor, never a few bits.
                if part > 0.01:
                    rates.append((source, destination, rail, part * capacity[s, r]))
    return tuple(rates)


@settings(max_examples=30, deadline=None)
@given(_admissible(), st.sampled_from(get_args(SharingName)))
def test_minimums_never_exceed_the_nic(rates: Rates, sharing: SharingName) -> None:
    for state in _compiled(rates, sharing=sharing).values():
        for shaper in state.shapers:
            queues = [q for q in state.queues if q.nic == shaper.nic]
            assert sum(q.min_bits_per_second for q in queues) <= shaper.max_bits_per_second
            assert DEFAULT_QUEUE in {q.queue_id for q in queues}
            assert len({q.queue_id for q in queues}) == len(queues)
            for q in queues:
                assert 0 < q.min_bits_per_second <= q.max_bits_per_second
                assert q.max_bits_per_second <= shaper.max_bits_per_second


def _job_queues(state: DesiredState) -> dict[tuple[str, int], tuple[int, int]]:
    """By (NIC, queue), the (minimum, maximum) of the queues that carry the job."""
    return {
        (q.nic, q.queue_id): (q.min_bits_per_second, q.max_bits_per_second)
        for q in state.queues
        if q.queue_id > ACKNOWLEDGEMENT_QUEUE
    }


def test_a_guarantee_borrows_what_its_receiver_has_left_in_proportion() -> None:
    usable = payload_capacity(50e6)
    rates = (("s1", "s3", "a", 10e6), ("s2", "s3", "a", 20e6), ("s1", "s2", "a", 5e6))
    states = _compiled(rates, sharing="guarantee")
    spare = usable - 30e6
    first, second = _job_queues(states["s1"]), _job_queues(states["s2"])
    assert first["nic0", 4] == (wire_rate(10e6), wire_rate(10e6 + spare / 3))
    assert second["nic0", 4] == (wire_rate(20e6), wire_rate(20e6 + spare * 2 / 3))
    # No other server sends to s2, so the pair may use all of the receiving NIC.
    assert first["nic0", 3] == (wire_rate(5e6), wire_rate(usable))


@settings(max_examples=30, deadline=None)
@given(_admissible())
def test_no_receiver_can_be_oversubscribed_by_borrowing(rates: Rates) -> None:
    """Holds where the minimums fit the receivers; the placement's check refuses other rates."""
    of, usable = plan(), payload_capacity(50e6)
    received = defaultdict[tuple[str, str], float](float)
    for _, destination, rail, rate in rates:
        received[destination, rail] += rate
    fitting = tuple(
        (s, d, rail, rate * min(1.0, usable / received[d, rail])) for s, d, rail, rate in rates
    )
    most = defaultdict[tuple[str, str], float](float)
    for promise in promises(of, placement(of, fitting, "guarantee")):
        t = promise.transfer
        most[t.destination, t.rail] += promise.at_most_bits_per_second
        assert promise.at_most_bits_per_second >= t.promised_bits_per_second
    assert all(total <= usable * (1 + 1e-9) for total in most.values())


def test_one_job_has_one_queue_on_each_nic_and_all_peers_lead_to_it() -> None:
    document = plan_document()
    document["network"] = {"sharing": "job", "floor": "60%"}
    states = _compiled((), sharing="job", document=document)
    floor = wire_rate(0.6 * payload_capacity(50e6))
    for state in states.values():
        expected = {(nic, JOB_QUEUE): (floor, 50_000_000) for nic in ("nic0", "nic1")}
        assert _job_queues(state) == expected
        # Acknowledgements keep a queue of their own.
        assert {c.queue_id for c in state.classifiers if c.destination is None} == {
            ACKNOWLEDGEMENT_QUEUE
        }
    # In the chain s1, s2, s3, server s3 only receives; its way back is the job's traffic as well.
    peers = {name: {f.destination for f in state.flows} for name, state in states.items()}
    assert peers == {
        "s1": {"10.7.0.2", "10.7.1.2"},
        "s2": {"10.7.0.1", "10.7.1.1", "10.7.0.3", "10.7.1.3"},
        "s3": {"10.7.0.2", "10.7.1.2"},
    }
    for state in states.values():
        steered = {c.destination for c in state.classifiers if c.queue_id == JOB_QUEUE}
        assert steered == {f.destination for f in state.flows}


@pytest.mark.parametrize(
    ("sharing", "background", "rest"),
    [
        ("job", "0bit", 0.97 - 0.8 * 0.96),
        ("strict", "0bit", 0.01),
        ("guarantee", "0bit", 0.01),
        ("strict", "50Mbit", 0.97 - 0.8 * 0.96),
        ("guarantee", "50Mbit", 0.97 - 0.8 * 0.96),
    ],
)
def test_what_the_job_does_not_count_on_is_promised_to_everybody_else(
    sharing: SharingName, background: str, rest: float
) -> None:
    document = plan_document()
    for nic in document["cluster"]["servers"][0]["nics"]:
        nic["background"] = background
    state = _compiled((("s1", "s2", "a", 10e6),), sharing=sharing, document=document)["s1"]
    found = {q.nic: q.min_bits_per_second for q in state.queues if q.queue_id == DEFAULT_QUEUE}
    assert found["nic0"] == pytest.approx(rest * 50e6, rel=1e-3)


def test_the_job_promises_every_sending_nic_its_floor_at_once() -> None:
    of = plan()
    promised = promises(of, placement(of, (), "job"))
    floor = 0.8 * payload_capacity(50e6)
    ends = [(p.transfer.source, p.transfer.rail, p.transfer.destination) for p in promised]
    # In the chain s1, s2, s3, two servers send to s2 and share its floor.
    assert sorted(ends) == [
        (s, rail, d) for s, d in (("s1", "s2"), ("s2", "s1"), ("s3", "s2")) for rail in "ab"
    ]
    for p in promised:
        share = 0.5 if p.transfer.destination == "s2" else 1.0
        assert p.transfer.paced == (share < 1)
        assert p.transfer.promised_bits_per_second == pytest.approx(share * floor)
        assert p.at_most_bits_per_second == pytest.approx(50e6 * payload_fraction())
        assert p.queue_id == JOB_QUEUE


def test_unshaped_promises_nothing_and_sets_no_queue() -> None:
    of = plan()
    assert promises(of, placement(of, (), "unshaped")) == ()
    assert all(not s.shapers and not s.flows for s in _compiled((), sharing="unshaped").values())


def test_senders_meet_at_a_receiver_only_where_they_must() -> None:
    choices = {"s1": ("s2", "s3"), "s2": ("s3",), "s3": ("s2", "s1"), "s4": ("s2",)}
    found = one_to_one(choices)
    assert set(found.values()) == {"s1", "s2", "s3"}
    assert all(found[source] in choices[source] for source in choices)


def test_a_plan_of_most_servers_finds_its_receivers() -> None:
    names = [f"s{k}" for k in range(2000)]
    everybody = tuple(names)
    # Each sends to all others, so that none need share a receiver.
    found = one_to_one({a: tuple(b for b in everybody if b != a) for a in names})
    assert set(found.values()) == set(names)
    # The last source takes the first receiver, whose source takes the next, and so on to the end.
    choices = {f"s{k}": (f"r{k}", f"r{k + 1}") for k in range(2000)} | {"last": ("r0",)}
    assert len(set(one_to_one(choices).values())) == 2001
    # All but one must share, and spread evenly over what they can choose.
    load = Counter(one_to_one(dict.fromkeys(names, ("r0", "r1"))).values())
    assert load == {"r0": 1000, "r1": 1000}


def test_transfers_of_one_server_have_ports_of_their_own() -> None:
    of = plan()
    rates: Rates = tuple(
        (s, d, rail, 1e6) for s in ("s1", "s2", "s3") for d in ("s1", "s2", "s3") if s != d
        for rail in "ab"
    )  # fmt: skip
    transfers = [promise.transfer for promise in promises(of, placement(of, rates))]
    assert len(transfers) == len(rates)
    assert len({(t.destination, t.tcp_port) for t in transfers}) == len(rates)
    for t in transfers:
        subnet = ipaddress.ip_network(f"{t.source_address}/24", strict=False)
        assert ipaddress.ip_address(t.destination_address) in subnet


def test_no_measurement_needs_a_port_that_the_kernel_gives_to_connections() -> None:
    document = plan_document(64, rate="100Gbit")
    for k, server in enumerate(document["cluster"]["servers"], start=1):
        first = server["nics"][0]
        server["nics"] = [
            {**first, "name": f"nic{r}", "rail": rail, "address": f"10.7.{r}.{k}/24"}
            for r, rail in enumerate("abcd")
        ]
    of = plan(document)
    names = [server.name for server in of.cluster.servers]
    rates: Rates = tuple(
        (s, d, rail, 1e9) for s in names for d in names if s != d for rail in "abcd"
    )
    ports = Counter(promise.transfer.tcp_port for promise in promises(of, placement(of, rates)))
    assert ports == dict.fromkeys(range(FIRST_TCP_PORT, FIRST_TCP_PORT + 252), 64)
    assert max(ports) < 27_000, "no licence server, and nothing of net.ipv4.ip_local_port_range"


def test_rails_that_do_not_carry_the_job_are_no_part_of_the_cluster() -> None:
    document = plan_document()
    document["network"]["rails"] = ["b"]
    assert plan(document).payload_cluster.rails == ("b",)


def test_placement_file_survives_a_round_trip() -> None:
    of = placement(plan(), (("s1", "s2", "a", 1e6),))
    assert Placement.model_validate_json(of.model_dump_json()) == of


# Names of NICs in GPU servers: PCI positions with ports, VLANs, and names that operators chose.
KERNEL_NAMES = ("enp129s0f1np1", "enp129s0f0np0", "enp3s0_a", "eth0.100", "ibp65s0", "a" * 15)


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_every_nic_of_the_kernel_has_a_bridge_of_its_own(name: str) -> None:
    document = plan_document()
    nics = document["cluster"]["servers"][1]["nics"]
    nics[0]["name"], nics[1]["name"] = name, name[:-1] + "z"
    state = _compiled(((("s2", "s1", "a", 10e6)),), document=document)["s2"]
    bridge, other = (b.name for b in state.bridges)
    assert bridge != other
    assert max(len(bridge), len(other)) <= 15 and bridge.startswith("pw-")
    assert {b.nic for b in state.bridges} == {name, name[:-1] + "z"}
    assert f"net.ipv4.conf.{bridge}.rp_filter" in {s.name for s in state.sysctls}
    assert tuple(sysctl_refusals(state, {"mgmt"})) == (), "the agent accepts those that we set"
    assert (state.routes[0].interface, state.flows[0].bridge) == (bridge, bridge)
    assert bridge == f"pw-{name}" or len(name) > 12


def test_a_pair_has_more_connections_only_where_no_queue_protects_it() -> None:
    def sockets(sharing: SharingName, background: str = "0bit") -> set[int]:
        document = plan_document()
        document["cluster"]["servers"][0]["nics"][0]["background"] = background
        of = plan(document)
        specs = rank_specs(of, placement(of, (), sharing), Path("placement"), Path("graph"))
        return {spec.sockets_per_rail for spec in specs}

    assert sockets("unshaped", "20Mbit") == {4}
    assert sockets("unshaped") == sockets("job", "20Mbit") == sockets("strict", "20Mbit") == {1}


def _able(**changes: Any) -> Capabilities:
    return capabilities().model_copy(update=changes)


NO_U32 = TrafficControl(known=True, qdiscs=("htb",))


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (_able(datapath="none"), "Open vSwitch does not answer"),
        (_able(traffic_control=NO_U32), "netdev datapath needs HTB and u32, the kernel has htb"),
        (
            _able(datapath="system", set_queue_honoured=True,
                  traffic_control=TrafficControl(known=True)),
            "the system datapath needs HTB, the kernel has none of it",
        ),
    ],
)  # fmt: skip
def test_a_server_that_leads_nothing_into_queues_is_refused(one: Capabilities, what: str) -> None:
    found = deliverable.refusals({"s1": capabilities(), "s2": one})
    assert list(found) == ["s2"] and what in found["s2"].what


def _script(traffic: Any, sharing: SharingName = "strict", rate: str = "50Mbit") -> Any:
    """(the plan of a script, its allocation)"""
    document = plan_document(rate=rate)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "traffic": traffic}
    document["network"]["sharing"] = sharing
    of = plan(document)
    weights = traffic if traffic != "even" else even_traffic(of.payload_cluster)
    return of, allocate(of.payload_cluster, weights, sharing, of.network.floor)


@pytest.mark.parametrize("sharing", ["strict", "guarantee"])
@pytest.mark.parametrize(
    ("heavy", "light", "said"),
    [(1e12, 1.0, "would get 0 bit/s on rail a"), (1e5, 1.0, "bit/s on rail a, and Open vSwitch"),
     (1e308, 5e-324, "would get no rate")],
)  # fmt: skip
def test_traffic_too_unlike_for_queues_is_refused_at_its_place(
    sharing: SharingName, heavy: float, light: float, said: str
) -> None:
    found = deliverable.rate_mistakes(*_script({"s1": {"s2": heavy, "s3": light}}, sharing))
    assert [path for path, _ in found] == ["job.traffic.s1.s3"]
    assert said in found[0][1] and "less unlike" in found[0][1]
    alike = _script({"s1": {"s2": heavy, "s3": heavy / 100}, "s2": {"s1": 0}}, sharing)
    assert deliverable.rate_mistakes(*alike) == ()


@pytest.mark.parametrize("sharing", get_args(SharingName))
def test_a_nic_too_slow_for_queues_is_refused_at_its_rate(sharing: SharingName) -> None:
    found = dict(deliverable.rate_mistakes(*_script("even", sharing, "10kbit")))
    nics = {f"cluster.servers[{s}].nics[{k}].rate" for s in range(3) for k in range(2)}
    assert found.keys() == (set() if sharing == "unshaped" else nics)
    assert deliverable.rate_mistakes(*_script("even", sharing, "2Mbit")) == ()


def test_a_placed_job_s_rate_below_all_queues_is_refused_at_its_nic() -> None:
    rates = (("s1", "s2", "a", 1e6), ("s1", "s2", "b", 11_000.0), ("s2", "s3", "a", 13_000.0))
    found = dict(deliverable.rate_mistakes(plan(), placement(plan(), rates)))
    assert list(found) == ["cluster.servers[0].nics[1].rate"]
    assert "s1 to s2 would get 11501 bit/s on rail b" in found["cluster.servers[0].nics[1].rate"]


def test_what_may_not_hold_is_said_and_not_refused() -> None:
    document = plan_document()
    for server in document["cluster"]["servers"]:
        for nic in server["nics"]:
            nic["rate"] = "30Gbit"
    of = plan(document)
    names = [server.name for server in of.cluster.servers]
    rdma = NicFacts(
        name="nic1", mac="02:00:00:00:00:01", mtu_bytes=1500, up=True, rdma=True, driver="mlx5",
        speed_bits_per_second=None, addresses=(), bridge=None,
    )  # fmt: skip
    able = {name: _able(nics=(rdma,) if name == "s2" else ()) for name in names}
    rates = (("s1", "s3", "a", 1e9),)
    desired = compile_network(of, placement(of, rates), able, dict.fromkeys(names, 1))
    assert deliverable.refusals(able) == {}
    fast, beside = deliverable.doubts(of, able, desired)
    assert fast.startswith("s1 nic0 (30 Gbit/s): software HTB")
    assert beside.startswith("s2 nic1 can do RDMA")
    slow = compile_network(plan(), placement(plan(), rates), able, dict.fromkeys(names, 1))
    assert deliverable.doubts(plan(), dict.fromkeys(names, capabilities()), slow) == ()
