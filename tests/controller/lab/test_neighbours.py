"""A lab that the kernel's table of neighbours has no room for is refused before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.controller.errors import PlacewireError
from placewire.controller.lab import lab_up, neighbours
from placewire.controller.lab.record import recorded_names
from placewire.controller.lab.shape import shape_of
from placewire.controller.lab.up import _record_of
from tests.controller.lab.test_lab import NAME, document
from tests.controller.plans import plan

NAMES = "entries  allocs destroys\n"


def test_each_nic_has_all_others_of_its_rail_and_the_controller_has_all_servers() -> None:
    made = _record_of(shape_of(plan(document(4, rails=2))))
    assert neighbours.neighbours_of(made) == 2 * 4 * 3 + 2 * 4


def test_labs_that_are_up_count_though_they_found_no_neighbours_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[int, int]] = []
    monkeypatch.setattr(neighbours, "entries_in_use", lambda statistics: 3)
    monkeypatch.setattr(neighbours, "refuse_too_many", lambda *one: counted.append(one[:2]))
    made = _record_of(shape_of(plan(document(4))))
    neighbours.require_room(made, [made, made])
    neighbours.require_room(made, [])
    assert counted == [(20, 40), (20, 3)]


def test_the_entries_of_the_whole_table_are_those_of_its_first_line() -> None:
    assert neighbours.entries_in_use(f"{NAMES}00000404 00004941 0\n00000404 1 0\n") == 0x404


def test_what_is_in_use_counts() -> None:
    neighbours.refuse_too_many(1000, 24, 1024)
    with pytest.raises(PlacewireError, match="may have 1000 neighbours in all") as refused:
        neighbours.refuse_too_many(1000, 25, 1024)
    assert "gc_thresh3=2048" in refused.value.remedy


@pytest.mark.network
def test_nothing_is_made_of_a_lab_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = tmp_path / "arp_cache"
    full.write_text(f"{NAMES}0fffffff 0 0\n")
    monkeypatch.setattr(neighbours, "_IN_USE_FILE", full)
    with pytest.raises(PlacewireError, match="network namespaces together"):
        lab_up(plan(document()))
    assert NAME not in recorded_names()
