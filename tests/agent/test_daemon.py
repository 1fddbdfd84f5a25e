"""The daemon undoes what must be undone before anything else, and whatever else is broken."""

from __future__ import annotations

import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from placewire.agent import daemon
from placewire.agent.contract.config import AgentConfig

UNIT = Path(__file__).parents[2] / "deploy" / "placewire-agent.service"


class Resumed(BaseException):
    """The daemon looked at its lease."""


def run_until_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "agent.pem")
    config = AgentConfig(
        server="s1", controller_url="https://127.0.0.1:1", certificate_file=missing,
        key_file=missing, authority_file=missing, state_dir=str(tmp_path),
    )  # fmt: skip
    keeper = Mock()
    keeper.resume.side_effect = Resumed
    monkeypatch.setattr(daemon, "Server", Mock())
    monkeypatch.setattr(daemon, "build_keeper", Mock(return_value=keeper))
    with pytest.raises(Resumed):
        daemon.run(config)


def test_the_lease_is_looked_at_though_no_certificate_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until_resumed(tmp_path, monkeypatch)


def test_it_may_open_more_files_than_a_session_usually_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, former[1]))
    try:
        run_until_resumed(tmp_path, monkeypatch)
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
    assert now == min(daemon.DESCRIPTORS, former[1])
    assert f"\nLimitNOFILE={daemon.DESCRIPTORS}\n" in UNIT.read_text()


def test_systemd_never_gives_up_starting_it() -> None:
    unit, _, service = UNIT.read_text().partition("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in unit and "\nRestart=always\n" in service
