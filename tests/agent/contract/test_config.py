"""What an agent's configuration refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from placewire.agent.contract.config import AgentConfig


def config(url: str) -> AgentConfig:
    return AgentConfig(
        server="s1", controller_url=url, certificate_file="", key_file="", authority_file="",
        state_dir="",
    )  # fmt: skip


@pytest.mark.parametrize(
    "url", ["https://10.9.0.1:7440", "https://[fd00::1]:7440", "HTTPS://controller:7440/"]
)
def test_a_controller_is_dialled_over_tls(url: str) -> None:
    assert config(url).controller_url == url


@pytest.mark.parametrize(
    "url",
    ["http://10.9.0.1:7440", "10.9.0.1:7440", "//10.9.0.1:7440", "https://", "https:10.9.0.1", ""],
)
def test_nothing_is_dialled_without_tls(url: str) -> None:
    with pytest.raises(ValidationError, match="is not https://HOST:PORT"):
        config(url)


def test_a_url_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValidationError, match="controller_url"):
        config("https://[::1:7440")
