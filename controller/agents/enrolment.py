"""Which token enrols which server: each once, for a while, from that server's address. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from placewire.agent.contract.enrolment import Token, parse_token


class EnrolmentRefusedError(Exception):
    """Says to the log why; whoever asked is only told that it was refused."""


@dataclass
class Enrolment:
    """addresses: by server, where its request must come from; None: from anywhere. Tokens are kept
    as digests: nobody reads them out of this process's memory by mistake."""

    authority_sha256: str
    addresses: Mapping[str, str | None]
    expires_seconds: float
    enrolled: set[str] = field(default_factory=set)
    _digests: dict[str, bytes] = field(default_factory=dict)

    def new_token(self, server: str) -> Token:
        """The former token of this server is void."""
        token = Token(server, self.authority_sha256, secrets.token_urlsafe(32))
        self._digests[server] = _digest(token.secret)
        return token

    @property
    def missing(self) -> list[str]:
        return [server for server in self.addresses if server not in self.enrolled]

    def server_of(self, text: str, peer_address: str, now_seconds: float) -> str:
        """The server that may have a certificate for this token: once it has it, add it to
        `enrolled`, which uses the token up. Raises EnrolmentRefusedError."""
        try:
            token = parse_token(text)
        except ValueError as error:
            raise EnrolmentRefusedError("what it sent is no token") from error
        server, known = token.server, self._digests.get(token.server)
        if server in self.enrolled:
            raise EnrolmentRefusedError(f"the token of {server!r} was used before")
        if known is None or not hmac.compare_digest(known, _digest(token.secret)):
            raise EnrolmentRefusedError(f"the token is none of those for {server!r}")
        if now_seconds >= self.expires_seconds:
            raise EnrolmentRefusedError(f"the token of {server!r} has expired")
        wanted = self.addresses[server]
        if wanted is not None and wanted != peer_address:
            raise EnrolmentRefusedError(
                f"the token of {server!r} came from {peer_address}, and is for {wanted}"
            )
        return server


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
