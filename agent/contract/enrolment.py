"""How an agent gets its certificate: the first with a token, each later one with the one before.

  GET  /v1/authority      the authority's certificate (PEM), trusted only if the token names it
  POST /v1/certificate    CertificateRequest -> CertificateAnswer

While `controller enrol` waits, it serves both at a port of its own, where the agent needs no
certificate but a token. An agent that has a certificate renews it with a POST over the normal link
to the controller. A private key never leaves its server.
"""

from __future__ import annotations

from dataclasses import dataclass

from placewire.frozen import Frozen

_MARK = "pw1"
LARGEST_REQUEST_BYTES = 16 * 1024


class CertificateRequest(Frozen):
    """request_pem: a PKCS #10 request for the server's own name. token: only the first time."""

    request_pem: str
    token: str | None = None


class CertificateAnswer(Frozen):
    """chain_pem: the certificate, then the authority's."""

    chain_pem: str


@dataclass(frozen=True)
class Token:
    """Lets one server enrol once. authority_sha256: digest of the authority's certificate in DER,
    by which an agent without any certificate recognises its controller."""

    server: str
    authority_sha256: str
    secret: str

    @property
    def text(self) -> str:
        return ".".join((_MARK, self.server, self.authority_sha256, self.secret))

    def __repr__(self) -> str:
        """Leaves the secret out, so that it is never logged."""
        return f"Token(server={self.server!r})"


def parse_token(text: str) -> Token:
    """Raises ValueError; its message does not repeat the text, which may hold a secret."""
    parts = text.strip().split(".")
    if len(parts) != 4 or parts[0] != _MARK or not all(parts):
        raise ValueError("this is no enrolment token; `controller enrol SERVER` makes one")
    return Token(*parts[1:])
