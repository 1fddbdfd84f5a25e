"""The agent's side of TLS, for tests that dial the controller themselves."""

from __future__ import annotations

import ssl
from pathlib import Path

from placewire.controller.agents.authority import Issued


def client_context(authority_file: Path, issued: Issued) -> ssl.SSLContext:
    """TLS 1.3 with this certificate; expects a controller of this authority."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context
