"""The plan that `init` writes can be parsed, and says in comments what is not known."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from placewire.agent.contract.capabilities import Capabilities, Device
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import LeaseState, NicFacts
from placewire.controller.errors import UsageError
from placewire.controller.plan.discovery import device_type, discovered_plan
from tests.controller.plans import plan

MODEL = "placewire.examples.models.mlp:training_step"
CPU = Device(name="cpu", memory_bytes=8 * 2**30)


def nic(name: str, *addresses: str, **changes: Any) -> NicFacts:
    fields: dict[str, Any] = {
        "name": name, "mac": "02:00:00:00:00:01", "mtu_bytes": 1500, "up": True,
        "speed_bits_per_second": 25_000_000_000, "driver": "mlx5_core", "rdma": False,
        "addresses": addresses, "bridge": None, "carrier": True,
    }  # fmt: skip
    return NicFacts(**{**fields, **changes})


def hello(number: int, *nics: NicFacts, devices: tuple[Device, ...] = (CPU,)) -> Hello:
    management = nic("eno1", f"10.9.0.{number}/24", "fe80::1/64")
    return Hello(
        server=f"s{number}", agent_pid=1, lease=LeaseState(phase="idle", generation=0),
        management=f"10.9.0.{number}",
        capabilities=Capabilities(
            datapath="system", set_queue_honoured=True, open_vswitch_version="3.1.0",
            kernel_version="6.1", python_version="3.11", nics=(management, *nics), devices=devices,
        ),
    )  # fmt: skip


def pair(number: int) -> tuple[NicFacts, NicFacts]:
    return nic("nic0", f"10.7.0.{number}/24"), nic("nic1", f"10.7.1.{number}/24")


def discovered(*hellos: Hello) -> str:
    return discovered_plan("small", MODEL, {each.server: each for each in hellos})


def test_it_is_a_plan_with_a_rail_for_each_common_subnet() -> None:
    found = plan(yaml.safe_load(discovered(hello(1, *pair(1)), hello(2, *pair(2)))))
    assert [s.name for s in found.cluster.servers] == ["s1", "s2"]
    for number, server in enumerate(found.cluster.servers, start=1):
        assert server.management == f"10.9.0.{number}"
        assert {n.name: n.rail for n in server.nics} == {"nic0": "a", "nic1": "b"}
        assert all(n.rate_bits_per_second == 25e9 and n.take_over for n in server.nics)
        assert server.devices[0].memory_bytes == 4 * 2**30


def test_an_agent_brings_no_lines_of_its_own_into_the_plan() -> None:
    """Whoever has one agent's key could otherwise choose what runs on the other servers."""
    line = "\nlaunch: {kind: ssh, user: root}\x1b[2J"
    odd = nic(f"nic0{line}", "10.7.0.9/24")
    liar = hello(2, *pair(2), odd, devices=(CPU, Device(name=f"A100{line}", memory_bytes=2**30)))
    text = discovered(hello(1, *pair(1)), liar.model_copy(update={"management": f"10.9.0.2{line}"}))
    document = yaml.safe_load(text)
    assert "launch" not in document and all(c.isprintable() or c == "\n" for c in text)
    assert [n["name"] for n in document["cluster"]["servers"][1]["nics"]] == ["nic0", "nic1"]
    assert document["cluster"]["servers"][1]["management"] == "0.0.0.0"


def test_gpus_are_named_as_their_profiles_and_keep_some_memory_back() -> None:
    gpus = (Device(name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * 2**30),) * 2
    found = plan(
        yaml.safe_load(
            discovered(hello(1, *pair(1), devices=gpus), hello(2, *pair(2), devices=gpus))
        )
    )
    assert [d.type for d in found.cluster.servers[0].devices] == ["a100", "a100"]
    assert found.cluster.servers[0].devices[0].memory_bytes == 72 * 2**30


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu", "cpu"), ("NVIDIA H200", "h200"), ("Tesla V100-PCIE-16GB", "teslav100pcie16gb"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx4080s"), ("NVIDIA L4", "l4"), ("", "cpu"),
    ],
)  # fmt: skip
def test_device_types(name: str, kind: str) -> None:
    assert device_type(name) == kind


def test_what_is_doubtful_or_left_out_is_a_comment() -> None:
    text = discovered(
        hello(
            1,
            nic("nic0", "10.7.0.1/24", speed_bits_per_second=None, mtu_bytes=9000),
            nic("nic1", "10.7.0.11/24", mtu_bytes=9000),
            nic("nic2", "10.8.0.1/24"),
            nic("nic3"),
            nic("nic4", "10.7.1.1/24", bridge="br0"),
        ),
        hello(2, nic("nic0", "10.7.0.2/24", carrier=False, mtu_bytes=4200)),
    )
    lines = text.splitlines()
    (first,) = (line for line in lines if "10.7.0.1/24" in line)
    assert "rate: 1Gbit, mtu: 4200" in first and "speed is not known" in first
    assert any("# nic1 10.7.0.11/24 is left out: rail a has one" in line for line in lines)
    assert any("# nic2 10.8.0.1/24 is left out: no other server" in line for line in lines)
    assert any("nobody at its other end" in line for line in lines)
    assert "nic3" not in text and "nic4" not in text
    assert len(plan(yaml.safe_load(text)).cluster.servers[0].nics) == 1


def test_protected_interfaces_are_no_nics_of_a_plan() -> None:
    guarded = hello(1, *pair(1)).model_copy(update={"protected": ("nic1",)})
    assert "nic1" not in discovered(guarded, hello(2, *pair(2))).split("name: s2")[0]


def test_a_management_nic_is_known_by_its_name_too() -> None:
    """The way to the controller may go by IPv6, or from the address of another interface."""
    by_v6 = {"management": None, "management_interfaces": ("nic1",)}
    said = hello(1, *pair(1)).model_copy(update=by_v6)
    assert "nic1" not in discovered(said, hello(2, *pair(2))).split("name: s2")[0]


def test_no_nic_is_offered_while_a_server_does_not_know_its_management_nic() -> None:
    unknown = {"management": None, "management_interfaces": None}
    said = hello(1, *pair(1)).model_copy(update=unknown)
    with pytest.raises(UsageError, match=r"^s1 did not know by which NIC"):
        discovered(said, hello(2, *pair(2)))


def test_servers_that_share_no_subnet_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no two of s1, s2 .* s1 nic0 10\.7\.0\.1/24") as caught:
        discovered(hello(1, nic("nic0", "10.7.0.1/24")), hello(2, nic("nic0", "10.8.0.2/24")))
    assert "one subnet" in caught.value.remedy


EVIL = "x\nlaunch: {kind: ssh, user: root}\njob: {kind: placed, model: evil:run}\n# "


def test_no_agent_writes_a_line_or_a_key_of_the_plan() -> None:
    """A plan is code, and whoever has one server's certificate says what that server has."""
    evil = hello(
        2,
        *pair(2),
        nic(EVIL, "10.7.2.2/24"),
        nic("nic2, rail: a}\nx: {y", "10.7.2.2/24"),
        nic("nic3", f"10.7.2.2/24{EVIL}"),
        devices=(Device(name=EVIL, memory_bytes=8 * 2**30),),
    )
    for management in (EVIL, "10.9.0.2\nlaunch: {kind: ssh}", "not known"):
        said = evil.model_copy(update={"management": management})
        text = discovered(hello(1, *pair(1), nic("nic2", "10.7.2.1/24")), said)
        document = yaml.safe_load(text)
        assert "launch" not in document and document["job"]["model"] == MODEL
        second = document["cluster"]["servers"][1]
        assert [each["name"] for each in second["nics"]] == ["nic0", "nic1"]
        assert "\x1b" not in text and second["management"] == "0.0.0.0"
