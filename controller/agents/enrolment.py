"""Decides which token enrols which server: once, for a limited time, from one address. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from placewire.agent.contract.enrolment import Token, parse_token


class EnrolmentRefusedError(Exception):
    """The message is for the controller's log; the server is only told that it was refused."""


@dataclass
class Enrolment:
    """addresses: by server, the address that its request must come from; None: any address. Only
    digests of tokens are kept, so that no token can leak from this process's memory."""

    authority_sha256: str
    addresses: Mapping[str, str | None]
    expires_seconds: float
    enrolled: set[str] = field(default_factory=set)
    _digests: dict[str, bytes] = field(default_factory=dict)

    def new_token(self, server: str) -> Token:
        """Makes a token for this server; its former token becomes void."""
        token = Token(server, self.authority_sha256, secrets.token_urlsafe(32))
        self._digests[server] = _digest(token.secret)
        return token

    @property
    def missing(self) -> list[str]:
        return [server for server in self.addresses if server not in self.enrolled]

    def server_of(self, text: str, peer_address: str, now_seconds: float) -> str:
        """Returns the server that this token entitles to a certificate. The caller adds it to
        `enrolled` once the certificate is signed, which uses the token up. Raises
        EnrolmentRefusedError where the token is not valid."""
        try:
            token = parse_token(text)
        except ValueError as error:
            raise EnrolmentRefusedError("it sent no valid token") from error
        server, known = token.server, self._digests.get(token.server)
        if server in self.enrolled:
            raise EnrolmentRefusedError(f"the token of {server!r} was used before")
        if known is None or not hmac.compare_digest(known, _digest(token.secret)):
            raise EnrolmentRefusedError(f"this is not the token that {server!r} was given last")
        if now_seconds >= self.expires_seconds:
            raise EnrolmentRefusedError(f"the token of {server!r} has expired")
        wanted = self.addresses[server]
        if wanted is not None and wanted != peer_address:
            raise EnrolmentRefusedError(
                f"the token of {server!r} came from {peer_address}, but is valid only from {wanted}"
            )
        return server


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
