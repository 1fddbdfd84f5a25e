"""All files that a rank's specification names are copied to its server, and found there."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.launch.rank_files import rank_files
from placewire.job.contract.specification import RankSpec, ScriptSpec


def test_placements_of_all_buckets_are_copied(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}-0f.json" for name in ("first", "5", "../8")}
    paths["../8"] = tmp_path / "8.json.gz"
    for name, path in paths.items():
        path.write_bytes(name.encode())
    spec = RankSpec(
        kind="placed", rank=0, world_size=1, device="s1/0", master_address="10.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file=str(paths["first"]), steps=1,
        bucket_files={"5": str(paths["5"]), "../8": str(paths["../8"])},
    )  # fmt: skip
    files = rank_files(spec)
    there = files.spec_in("/run/there")
    assert isinstance(there, RankSpec)
    assert there.placement_file == "/run/there/placement.json"
    assert there.bucket_files == {
        "5": "/run/there/bucket0.json", "../8": "/run/there/bucket1.json.gz",
    }  # fmt: skip
    assert files.contents == {
        "placement.json": b"first", "bucket0.json": b"5", "bucket1.json.gz": b"../8",
    }  # fmt: skip


def test_a_script_names_no_files() -> None:
    spec = ScriptSpec(
        script="train.py", rank=0, world_size=1, device="s1/0", master_address="10.0.0.1",
        master_tcp_port=1, rail_interfaces=(), rail_pattern=(0,),
    )  # fmt: skip
    files = rank_files(spec)
    assert not files.contents and files.spec_in("/run/there") == spec
