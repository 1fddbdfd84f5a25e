"""How an agent gets its certificate: once with a token, then again and again with the one it has.

  GET  /v1/authority      the authority's certificate (PEM), trusted only if the token says so
  POST /v1/certificate    CertificateRequest -> CertificateAnswer

The first is served while `controller enrol` waits, at a port of its own and without an agent's
certificate; the second there with a token, and at the link with the certificate that is to be
renewed. A private key never leaves its server.
"""

from __future__ import annotations

from dataclasses import dataclass

from placewire.frozen import Frozen

_MARK = "pw1"
LARGEST_REQUEST_BYTES = 16 * 1024


class CertificateRequest(Frozen):
    """request_pem: a PKCS #10 request for the server's own name. token: the first time."""

    request_pem: str
    token: str | None = None


class CertificateAnswer(Frozen):
    """chain_pem: the certificate, then the authority's."""

    chain_pem: str


@dataclass(frozen=True)
class Token:
    """For one server, once. authority_sha256: of the authority's certificate in DER, by which an
    agent that knows nobody yet knows its controller."""

    server: str
    authority_sha256: str
    secret: str

    @property
    def text(self) -> str:
        return ".".join((_MARK, self.server, self.authority_sha256, self.secret))

    def __repr__(self) -> str:
        """Without the secret, which must not come into a log."""
        return f"Token(server={self.server!r})"


def parse_token(text: str) -> Token:
    """Raises ValueError, without what was given."""
    parts = text.strip().split(".")
    if len(parts) != 4 or parts[0] != _MARK or not all(parts):
        raise ValueError("this is no enrolment token; `controller enrol SERVER` makes one")
    return Token(*parts[1:])
