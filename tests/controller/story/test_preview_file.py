"""Applying a preview file makes the changes that it shows, or none."""

from __future__ import annotations

import copy
import datetime
import os
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import Change, DesiredState, LeaseState
from placewire.controller.commands.arguments import require_writable
from placewire.controller.errors import PlacewireError, PlanError, StalePreview, UsageError
from placewire.controller.story.preview_file import (
    PreviewFile,
    preview_of,
    read_preview,
    require_as_previewed,
    require_made_as_previewed,
    write_preview,
)
from placewire.controller.story.proposal import Proposal
from tests.controller.decide.test_cached_file import full_disk
from tests.controller.plans import plan_document
from tests.paths import ROOT


def change(key: str, after: str = "{}") -> Change:
    return Change(action="add", collection="bridges", key=key, before=None, after=after)


def proposal(changes: dict[str, tuple[Change, ...]], *, generation: int = 1) -> Proposal:
    desired = {
        server: DesiredState(
            server=server, generation=generation, plan_name="small", plan_digest="d"
        )
        for server in changes
    }
    lease = LeaseState(phase="idle", generation=0)
    previewed = {
        server: Previewed(changes=some, refusals=(), lease=lease)
        for server, some in changes.items()
    }
    decision = SimpleNamespace(predicted_step_seconds=0.5)
    return Proposal(cast(Any, decision), desired, previewed)


SHOWN = {"s1": (change("pw-nic0"), change("pw-nic1")), "s2": ()}


def test_a_preview_is_read_as_it_was_written_and_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "shown.json"
    file.touch(mode=0o644)
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    write_preview(preview, file)
    assert read_preview(file) == preview
    assert file.stat().st_mode & 0o777 == 0o600
    assert preview.parsed().name == "small"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_preview_written_into_a_device_changes_nothing_of_it(tmp_path: Path) -> None:
    """An own device that drops what it is given, as /dev/null does."""
    device = tmp_path / "null"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    device.chmod(0o666)
    require_writable(device, reads=tmp_path / "plan.yaml")
    before = device.stat()
    write_preview(preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN)), device)
    after = device.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_a_preview_may_go_into_a_pipe_and_into_no_socket(tmp_path: Path) -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    begin, end = os.pipe()
    out = Path(f"/dev/fd/{end}")
    require_writable(out)
    write_preview(preview, out)
    os.close(end)
    with os.fdopen(begin) as read:
        assert PreviewFile.model_validate_json(read.read()) == preview
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(UsageError, match="a socket"):
            require_writable(tmp_path / "s")


def test_the_values_of_variables_are_the_plan_files_own(tmp_path: Path) -> None:
    """A preview is shown to others; a variable may be a password."""
    document, file = plan_document(), tmp_path / "plan.yaml"
    document["job"]["env"] = {"TOKEN": "opensesame", "PYTHONHASHSEED": "0"}
    file.write_text(yaml.safe_dump(document))
    preview = preview_of(document, file, proposal(SHOWN))
    write_preview(preview, tmp_path / "shown.json")
    assert "opensesame" not in (tmp_path / "shown.json").read_text()
    assert preview.parsed().job.env == document["job"]["env"]
    document["job"]["env"]["TOKEN"] = "another"
    file.write_text(yaml.safe_dump(document))
    assert preview.parsed().job.env["TOKEN"] == "another"
    del document["job"]["env"]["TOKEN"]
    file.write_text(yaml.safe_dump(document))
    for _ in range(2):
        with pytest.raises(UsageError, match="other variables than when"):
            preview.parsed()
        file.unlink(missing_ok=True)


def test_what_is_no_preview_may_be_a_plan(tmp_path: Path) -> None:
    for text in (
        "version: 1\n", "{}", "[1]", '{"kind": "other"}', "", "[" * 100_000,
        '{"kind": "preview", "plan": ' + '{"a":' * 100_000,
    ):  # fmt: skip
        (tmp_path / "file").write_text(text)
        assert read_preview(tmp_path / "file") is None
    assert read_preview(tmp_path / "none") is None
    (tmp_path / "file").write_text('{"kind": "preview", "version": 2}')
    with pytest.raises(UsageError, match="cannot read this preview"):
        read_preview(tmp_path / "file")


@pytest.mark.parametrize("plan_file", ["\0x", "/a\0", "plan.yaml", ""])
def test_a_preview_of_no_whole_path_is_refused(tmp_path: Path, plan_file: str) -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    broken = preview.model_copy(update={"plan_file": plan_file})
    write_preview(broken, tmp_path / "shown.json")
    with pytest.raises(UsageError, match="cannot read this preview"):
        read_preview(tmp_path / "shown.json")


def test_a_preview_of_other_servers_is_stale() -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    with pytest.raises(StalePreview) as caught:
        require_as_previewed(preview, proposal({**SHOWN, "s3": ()}))
    assert caught.value.differing == {"s3": ("the preview does not have it",)}
    with pytest.raises(StalePreview) as caught:
        require_as_previewed(preview, proposal({"s1": SHOWN["s1"]}))
    assert caught.value.differing == {"s2": ("the plan does not have it any more",)}


def test_the_same_changes_may_be_made_under_a_later_generation() -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    require_as_previewed(preview, proposal(SHOWN, generation=7))


def test_what_differs_is_named_by_server() -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    now: dict[str, tuple[Change, ...]] = {
        "s1": (change("pw-nic0", after="{1}"),),
        "s2": (change("pw-nic0"),),
    }
    with pytest.raises(StalePreview) as caught:
        require_as_previewed(preview, proposal(now))
    assert caught.value.differing == {
        "s1": ("bridges pw-nic0", "bridges pw-nic1"), "s2": ("bridges pw-nic0",),
    }  # fmt: skip
    assert caught.value.exit_code == 5
    many = {"s1": tuple(change(f"b{k}") for k in range(9)), "s2": ()}
    with pytest.raises(StalePreview, match="and 7 more"):
        require_as_previewed(preview, proposal(many))


def test_another_state_behind_the_same_changes_is_stale() -> None:
    """So it is where servers have the changes already, made by another plan."""
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal({"s1": ()}))
    other = proposal({"s1": ()})
    other.desired["s1"] = other.desired["s1"].model_copy(update={"plan_digest": "e"})
    with pytest.raises(StalePreview, match="another"):
        require_as_previewed(preview, other)


def test_what_was_made_and_not_shown_is_named() -> None:
    preview = preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN))
    other_order = {"s1": SHOWN["s1"][::-1], "s2": ()}
    require_made_as_previewed(preview, other_order)
    with pytest.raises(StalePreview, match="every server is put back") as caught:
        require_made_as_previewed(preview, SHOWN | {"s2": (change("pw-nic0"),)})
    assert caught.value.differing == {"s2": ("bridges pw-nic0",)}


def test_a_preview_of_a_plan_that_was_edited_since_is_refused(tmp_path: Path) -> None:
    document, file = plan_document(), tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(document))
    preview = preview_of(copy.deepcopy(document), file, proposal(SHOWN))
    file.write_text("# as it was\n" + yaml.safe_dump(document, sort_keys=True))
    assert preview.parsed().name == "small"
    document["cluster"]["servers"][1]["nics"][0]["rate"] = "20Mbit"
    document["name"] = "other"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError, match="not as it was previewed") as caught:
        preview.parsed()
    told = caught.value.what
    assert 'cluster.servers[1].nics[0].rate was "50Mbit", is "20Mbit"' in told
    assert 'name was "small", is "other"' in told and caught.value.where == str(file)
    file.write_text(yaml.safe_dump(document | {"name": datetime.date(2026, 1, 2)}))
    with pytest.raises(UsageError, match='name was "small", is "2026-01-02"'):
        preview.parsed()
    file.write_text("[")
    with pytest.raises(PlanError):
        preview.parsed()
    file.unlink()
    assert preview.parsed().name == "small", "which does not need its file"


def test_a_full_disk_takes_no_preview_away(tmp_path: Path) -> None:
    file = tmp_path / "shown.json"
    write_preview(preview_of(plan_document(), ROOT / "small.yaml", proposal(SHOWN)), file)
    before = file.read_bytes()
    other = preview_of(plan_document(), ROOT / "small.yaml", proposal({"s1": (), "s2": ()}))
    with full_disk(), pytest.raises(PlacewireError, match="the preview is not written") as caught:
        write_preview(other, file)
    assert "free space" in caught.value.remedy
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
