"""Names that iproute2's files give to tables, protocols and scopes, or no longer give."""

from __future__ import annotations

import ctypes
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import Ledger, TakenOver
from placewire.agent.iproute2_names import FOLDERS, Names
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import STATE_FILE, DiskStore
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

_CLONE_NEWNS = 0x00020000


@pytest.mark.parametrize(
    ("file", "row", "said", "number"),
    [
        ("etc/iproute2/rt_protos", "0x63 fest  # theirs", "proto fest", "proto 99"),
        ("usr/share/iproute2/rt_protos.d/x.conf", "99\tfest", "proto fest", "proto 99"),
        ("usr/lib/iproute2/rt_tables", "x y\n0xy z\n60 attic", "table attic", "table 60"),
        ("etc/iproute2/rt_tables.d/x.conf", "8000 storage", "table storage", "table 8000"),
        ("etc/iproute2/rt_tables.d/x.txt", "8000 storage", "table storage", "table storage"),
        ("etc/iproute2/rt_scopes", "253 near", "scope near", "scope 253"),
        ("etc/iproute2/rt_realms", "7 a\n8 b", "realm a/b", "realm 7/8"),
        ("etc/iproute2/rt_dsfield", "0x8 slow", "tos slow", "tos 0x08"),
        ("etc/iproute2/rt_tables", "254 trunk", "table main proto static scope link", None),
        ("etc/iproute2/rt_protos", "", "proto gone src static", "proto gone src static"),
    ],
)  # fmt: skip
def test_a_name_becomes_its_number(
    tmp_path: Path, file: str, row: str, said: str, number: str | None
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f"# names\n{row}\n")
    route = Names(tmp_path).in_text(f"10.1.0.0/16 via 10.7.0.2 dev nic0 {said}")
    expected = "table 254 proto 4 scope 253" if number is None else number
    assert route == f"10.1.0.0/16 via 10.7.0.2 dev nic0 {expected}"


def test_what_an_earlier_release_wrote_is_read_with_numbers(tmp_path: Path) -> None:
    names = TakenOver(
        nic="nic0", mac="02:00:00:00:00:01", bridge="pw-nic0",
        addresses=("10.7.0.1/24 broadcast 10.7.0.255 scope global label nic0",),
        routes=(
            "10.7.0.0/24 dev nic0 table main proto kernel scope link src 10.7.0.1 metric 100",
            "10.8.0.0/24 via 10.7.0.2 dev nic0 rto_min lock 200ms mtu lock 1400",
        ),
    )  # fmt: skip
    ledger = Ledger(nics=(names,), owed=(names.model_copy(update={"nic": "nic1"}),))
    text = Kept(ledger=ledger).model_dump_json()
    header = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()})
    (tmp_path / STATE_FILE).write_text(f"{header}\n{text}\n")
    read = DiskStore(tmp_path).load().ledger
    for taken in (*read.nics, *read.owed):
        assert taken.addresses == ("10.7.0.1/24 broadcast 10.7.0.255 scope 0 label nic0",)
        assert taken.routes == (
            "10.7.0.0/24 dev nic0 table 254 proto 2 scope 253 src 10.7.0.1 metric 100",
            "10.8.0.0/24 via 10.7.0.2 dev nic0 rto_min 200ms mtu lock 1400",
        )


FILES = {
    "rt_tables": "60 attic\n254 trunk\n8000 storage\n255 here\n",
    "rt_protos": "99 fest\n4 solid\n2 core\n80 placewire\n",
    "rt_scopes": "0 all\n253 near\n254 self\n",
    "rt_dsfield": "0x10 quick\n",
    "rt_realms": "3 market\n",
}
ROUTES = """
ip route add 172.16.0.0/16 via 10.7.0.2 dev nic0 proto static metric 50
ip route add 172.17.0.0/16 dev nic0 scope link table 60 proto 99
ip route add 172.18.0.0/16 via 10.7.0.2 dev nic0 tos 0x10 realm 3
ip route add local 172.19.0.1 dev nic0 table 61 proto 4
ip address del 10.7.1.1/24 dev nic1
ip address add 10.7.1.1/24 broadcast 10.7.1.255 dev nic1 noprefixroute
ip route add 10.7.1.0/24 dev nic1 proto kernel scope link src 10.7.1.1 metric 100
"""


def among(names: dict[str, str], folder: str, do: Callable[..., Any], *arguments: Any) -> Any:
    """Runs it in this process, for which iproute2's files are these alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for file, text in names.items():
        (Path(folder) / file).write_text(text)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for place in FOLDERS:  # Which of them are there is the distribution's choice.
        if (Path("/") / place).is_dir():
            subprocess.run(["mount", "--bind", folder, f"/{place}"], check=True)
    assert subprocess.run(
        ["ip", "route", "show", "table", "60"], capture_output=True
    ).returncode == 0  # fmt: skip
    return do(*arguments)


def heal(config: AgentConfig) -> Any:
    keeper = keeping.keeper(config)
    keeper.resume()
    return keeper.read_back(1)


@pytest.mark.network
@pytest.mark.parametrize("named", ["afterwards", "before"])
def test_a_name_that_comes_or_goes_while_a_plan_is_in_force_changes_nothing(
    server: ServerUnderTest, tmp_path: Path, named: str
) -> None:
    first, second = ({}, FILES) if named == "afterwards" else (FILES, {})
    server.sh(ROUTES)
    before = server.snapshot()
    plain, files = tmp_path / "first", tmp_path / "second"
    plain.mkdir()
    files.mkdir()
    report = server.inside(among, first, str(plain), keeping.stage, server.config, desired_state(1))
    assert report.succeeded, report.refusals
    server.inside(keeping.commit, server.config, 1)
    during = server.snapshot()
    assert "172.17.0.0/16 dev pw-nic0" in during["routes"]
    # Somebody takes a route off: it is put back, and nothing else is touched.
    server.sh("ip route del 172.17.0.0/16 table 60")
    found = server.inside(among, second, str(files), heal, server.config)
    assert found.deviations == () and found.problems == ()
    assert sorted(server.snapshot()["routes"].splitlines()) == sorted(during["routes"].splitlines())
    report = server.inside(among, second, str(files), keeping.destroy, server.config)
    assert report.succeeded, report.refusals
    after = server.snapshot()
    assert sorted(after.pop("routes").splitlines()) == sorted(before.pop("routes").splitlines())
    assert after == before
