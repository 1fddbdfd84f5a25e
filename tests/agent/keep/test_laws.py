"""Laws of the agent on real Open vSwitch, tc and netlink, over random sequences of states.

applied twice                    nothing changes
after any sequence of states     everything is as after the last one alone
whatever is not ours             is as it was, to the byte, after every step
destroyed                        the server is as it was before
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.entries import FLOW_PRIORITY
from placewire.agent.contract.state import DesiredState, ObservedState
from placewire.agent.store import DiskStore
from tests.agent import keeping
from tests.agent.random_states import desired_states
from tests.agent.server_under_test import ServerUnderTest, server_under_test
from tests.agent.states import desired_state

pytestmark = [pytest.mark.network, pytest.mark.slow]

SEQUENCES, MORE_SEQUENCES = 3, 5
LONGEST = 3

# Foreign entries as near to ours as they can be without being in the way: priorities, tables,
# preferences.
FOREIGN = f"""
ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock -- add-br theirs -- set bridge theirs datapath_type=netdev \
  fail_mode=secure external_ids:placewires=x -- add-port theirs op0 \
  -- set interface op0 type=internal \
  -- --id=@queue create queue other-config:max-rate=7000000 \
  -- --id=@qos create qos type=linux-htb other-config:max-rate=9000000 queues:1=@queue \
  -- set port op0 qos=@qos
ovs-ofctl add-flow unix:$OVS_RUNDIR/theirs.mgmt \
  cookie=7,priority={FLOW_PRIORITY},in_port=LOCAL,ip,nw_dst=10.7.0.2,actions=drop
ip rule add from 192.168.77.1 lookup 77 priority 17999
ip rule add from 192.168.77.2 lookup 77 priority 18500
ip route add 192.168.77.0/24 dev mgmt table 77
ip route add 192.168.78.0/24 dev mgmt table 8200
ip route add 192.168.79.0/24 dev mgmt proto static
ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 proto static metric 50
tc qdisc add dev mgmt root handle 9: htb default 1
tc class add dev mgmt parent 9: classid 9:1 htb rate 90mbit
tc filter add dev mgmt parent 9: protocol ip prio 20481 u32 match ip dst 9.9.9.9 flowid 9:1
sysctl -qw net.ipv4.conf.mgmt.arp_notify=1
"""
SHOW_FOREIGN = """
ovs-ofctl -O OpenFlow13 --no-stats dump-flows unix:$OVS_RUNDIR/theirs.mgmt
tc class show dev mgmt; tc filter show dev mgmt; tc qdisc show dev mgmt
tc class show dev op0; tc qdisc show dev op0
ip rule show table 77; ip route show table 77; ip route show table 8200; ip route show dev mgmt
ip address show mgmt; ip address show theirs; cat /proc/sys/net/ipv4/conf/mgmt/*
V="ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock"
$V list bridge theirs; $V list port op0; $V list interface op0 | grep -v statistics
qos=$($V get port op0 qos); $V list queue $($V get qos $qos queues:1); $V list qos $qos
"""
_DRAWN = settings(
    deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
_ANY_SEQUENCE = st.lists(desired_states(), min_size=2, max_size=LONGEST)
# (what the agent reads, lines of the system's tools)
Shown = tuple[ObservedState, list[str]]
# These are on a bridge and on an HTB of ours, as long as those exist.
THEIR_FLOW = f"priority={FLOW_PRIORITY},in_port=LOCAL,ip,nw_dst=10.7.0.9"
THEIR_FILTER = "prio 5 u32 match ip dst 9.9.9.9/32 flowid 1:1"


@contextmanager
def busy_server() -> Iterator[ServerUnderTest]:
    """A server on which others have something everywhere; each sequence has its own."""
    with server_under_test() as server:
        server.sh(FOREIGN)
        yield server


@settings(_DRAWN, max_examples=SEQUENCES)
@given(_ANY_SEQUENCE)
def test_laws_of_any_sequence(states: list[DesiredState]) -> None:
    keeps_the_laws(states)


@pytest.mark.thorough
@settings(_DRAWN, max_examples=MORE_SEQUENCES)
@given(_ANY_SEQUENCE)
def test_laws_of_more_sequences(states: list[DesiredState]) -> None:
    keeps_the_laws(states)


def keeps_the_laws(states: list[DesiredState]) -> None:
    with busy_server() as server:
        before, theirs = server.snapshot(), server.sh(SHOW_FOREIGN)
        guests = Guests(server)
        for state in states:
            guests.about_to_become(state)
            stage(server, state)
            assert server.sh(SHOW_FOREIGN) == theirs
            guests.are_there()
        assert stage(server, states[-1]) == 0, "applied twice"
        guests.are_there()
        guests.leave()
        after_all = shown(server)
        destroy(server)
        assert server.snapshot() == before
        assert server.sh(SHOW_FOREIGN) == theirs
        stage(server, states[-1])
        assert differing(after_all, shown(server)) == [], "as the last one alone"


def test_the_comparison_sees_what_differs() -> None:
    """Without this, a comparison that sees nothing would keep the law above."""
    looks = []
    with busy_server() as server:
        for rates in ((10_000_000, 20_000_000), (10_000_000, 21_000_000)):
            stage(server, desired_state(1, rates=rates))
            looks.append(shown(server))
    found = " ".join(differing(*looks))
    assert "effective_queues" in found and "rate 21Mbit ceil 21Mbit" in found
    assert 'max-rate="21000000"' in found


def differing(one: Shown, other: Shown) -> list[str]:
    """What differs. Of sysctls the agent reads only those that it ever changed; the tools' lines
    have all. What is foreign is compared elsewhere."""
    fields = [
        f"{name}: {a} and {b}"
        for name in set(ObservedState.model_fields) - {"sysctls", "foreign"}
        if sorted(map(str, a := getattr(one[0], name)))
        != sorted(map(str, b := getattr(other[0], name)))
    ]
    return [*fields, *(Counter(one[1]) - Counter(other[1])), *(Counter(other[1]) - Counter(one[1]))]


def stage(server: ServerUnderTest, state: DesiredState) -> int:
    """Stages the state as the next generation and for good; returns how many changes that took."""
    changes: int = server.inside(_stage, server.config, state)
    return changes


def _stage(config: AgentConfig, state: DesiredState) -> int:
    generation = DiskStore(Path(config.state_dir)).load().lease.highest_generation + 1
    keeper = keeping.keeper(config)
    report = keeper.stage(state.model_copy(update={"generation": generation}), 60)
    assert report.succeeded, report.refusals
    keeper.commit(generation, None)
    found = keeper.read_back(generation)
    assert (found.deviations, found.problems) == ((), ())
    return len(report.changes)


def _refusals(config: AgentConfig, state: DesiredState) -> str:
    generation = DiskStore(Path(config.state_dir)).load().lease.highest_generation + 1
    report = keeping.keeper(config).stage(state.model_copy(update={"generation": generation}), 60)
    assert not report.succeeded and report.changes == ()
    return "; ".join(refusal.sentence for refusal in report.refusals)


def destroy(server: ServerUnderTest) -> None:
    report = server.inside(keeping.destroy, server.config)
    assert report.succeeded, report.refusals


def shown(server: ServerUnderTest) -> Shown:
    """What our own reading and the system's tools show, without what differs each time it is made:
    indexes, handles, row ids."""
    observed = server.inside(keeping.observe, server.config).state
    tools = server.sh(
        "for n in nic0 nic1; do tc class show dev $n; tc qdisc show dev $n; tc filter show dev $n; "
        "done; ip -4 address show; ip link show; ip -4 route show table all; ip rule show; "
        "for b in $(ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock list-br); do "
        "ovs-ofctl -O OpenFlow13 --no-stats dump-flows unix:$OVS_RUNDIR/$b.mgmt; done; "
        "ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock -- --columns=name,datapath_type,external_ids,"
        "other_config list bridge -- --columns=name,external_ids list port "
        "-- --columns=other_config,external_ids list qos "
        "-- --columns=other_config,external_ids list queue; grep -H . /proc/sys/net/ipv4/conf/*/*"
    )
    lines = [re.sub(r"^\d+: |fh \S+ |order \d+ |key ht \S+ |bkt \S+ ", "", line.strip())
             for line in tools.splitlines()]  # fmt: skip
    return observed, sorted(line for line in lines if "cookie=0x7," not in line)


class Guests:
    """A foreign flow on our bridge over nic0, and a foreign filter on our HTB there."""

    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self._flow = self._filter = False

    def about_to_become(self, state: DesiredState) -> None:
        """The guests come once there is a place for them, and leave when it would go: until then
        the state is refused."""
        names = {bridge.name for bridge in state.bridges}
        shaped = {shaper.nic for shaper in state.shapers}
        flow_leaves = self._flow and "pw-nic0" not in names
        filter_leaves = self._filter and "nic0" not in shaped
        if flow_leaves or filter_leaves:
            said = self._server.inside(_refusals, self._server.config, state)
            assert ("10.7.0.9" in said, "preference 5" in said) == (flow_leaves, filter_leaves)
            self.are_there()
            self.leave(flow=flow_leaves, filter_=filter_leaves)
        there = self._server.sh("tc qdisc show dev nic0; ip -br link show")
        if "pw-nic0" in there and "pw-nic0" in names and not self._flow:
            self._server.sh(f"ovs-ofctl add-flow {self._management} cookie=7,{THEIR_FLOW},"
                            "actions=drop")  # fmt: skip
            self._flow = True
        if "htb 1: " in there and "nic0" in shaped and not self._filter:
            self._server.sh(f"tc filter add dev nic0 parent 1: protocol ip {THEIR_FILTER}")
            self._filter = True

    def leave(self, *, flow: bool = True, filter_: bool = True) -> None:
        if flow and self._flow:
            self._server.sh(f"ovs-ofctl --strict del-flows {self._management} {THEIR_FLOW}")
            self._flow = False
        if filter_ and self._filter:
            self._server.sh("tc filter del dev nic0 parent 1: protocol ip pref 5")
            self._filter = False

    def are_there(self) -> None:
        if self._flow:
            flows = self._server.sh(f"ovs-ofctl --no-stats dump-flows {self._management}")
            assert flows.count("nw_dst=10.7.0.9 actions=drop") == 1, flows
        if self._filter:
            assert self._server.sh("tc filter show dev nic0").count("09090909") == 1

    @property
    def _management(self) -> str:
        return f"unix:{self._server.directory}/pw-nic0.mgmt"
