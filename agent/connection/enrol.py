"""`agent enrol`: gets this server's first certificate from a controller that waits, for a token."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from pathlib import Path

from pydantic import ValidationError

from placewire.agent.connection.controller_connection import CONTROLLER_NAME
from placewire.agent.connection.identity import keep, new_key, require_room, write_private
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.enrolment import (
    CertificateAnswer,
    CertificateRequest,
    Token,
    parse_token,
)

_SECONDS = 10.0
_LONGEST_ANSWER_BYTES = 64 * 1024


class EnrolmentError(Exception):
    """The message says what went wrong and what to do, and never has the token."""


def enrol(config: AgentConfig, place: str, token_text: str) -> None:
    """Writes the certificates of the authority and this server. Raises EnrolmentError, OSError."""
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise EnrolmentError(f"{place!r}: give HOST:PORT, where `controller enrol` waits")
    if config.key_file != config.certificate_file:
        raise EnrolmentError(
            "key_file and certificate_file must name one file, like "
            f"{config.state_dir}/agent.pem, so that both are renewed at once"
        )
    try:
        token = parse_token(token_text)
    except ValueError as error:
        raise EnrolmentError(str(error)) from error
    if token.server != config.server:
        raise EnrolmentError(f"the token is for {token.server!r}, this server is {config.server!r}")
    where = (host.strip("[]"), int(port))
    authority_pem = _authority(where, token)
    key, state = new_key(config.server), Path(config.state_dir)
    # Before the token is spent: can the certificate be kept?
    try:
        write_private(Path(config.authority_file), authority_pem.encode(), like=state, mode=0o644)
        require_room(Path(config.certificate_file), key.key_pem, like=state)
    except OSError as error:
        raise EnrolmentError(
            f"{error.filename or state}: {error.strerror}; the token is not used yet: run this as "
            "root on a server where the agent is installed"
        ) from error
    answer = _certificate(where, authority_pem, key.request_pem, token)
    try:
        keep(Path(config.certificate_file), key.key_pem, answer.chain_pem, like=state)
    except (OSError, ValueError) as error:
        raise EnrolmentError(f"{error}; `controller enrol` makes a new token") from error


def _authority(where: tuple[str, int], token: Token) -> str:
    """The authority's certificate, fetched without a check of who answers there, and believed only
    where it is the one that the token names."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.minimum_version = ssl.TLSVersion.TLSv1_3
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    status, text = _ask(where, unverified, "GET", "/v1/authority")
    try:
        der = ssl.PEM_cert_to_DER_cert(text)
    except ValueError as error:
        raise EnrolmentError(f"{where[0]} does not answer as a controller that enrols") from error
    found = hashlib.sha256(der).hexdigest()
    if status != 200 or not hmac.compare_digest(found, token.authority_sha256):
        raise EnrolmentError(
            f"{where[0]} is not the controller that made this token: its authority is another. "
            "Nothing was sent to it"
        )
    # Only the compared bytes are trusted, not what else the text may contain.
    return ssl.DER_cert_to_PEM_cert(der)


def _certificate(
    where: tuple[str, int], authority_pem: str, request_pem: str, token: Token
) -> CertificateAnswer:
    context = ssl.create_default_context(cadata=authority_pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    asked = CertificateRequest(request_pem=request_pem, token=token.text)
    status, text = _ask(where, context, "POST", "/v1/certificate", asked.model_dump_json())
    if status != 200:
        raise EnrolmentError(f"the controller says {status}: {text[:200]}")
    try:
        return CertificateAnswer.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise EnrolmentError("the controller's answer is not understood") from error


def _ask(
    where: tuple[str, int], context: ssl.SSLContext, method: str, path: str, body: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*where, timeout=_SECONDS)
    try:
        plain = socket.create_connection(where, timeout=_SECONDS)
        connection.sock = context.wrap_socket(plain, server_hostname=CONTROLLER_NAME)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(_LONGEST_ANSWER_BYTES).decode(errors="replace")
    except ssl.SSLError as error:
        raise EnrolmentError(f"{where[0]}: no trusted connection: {error.reason}") from error
    except (OSError, OverflowError, http.client.HTTPException) as error:
        raise EnrolmentError(
            f"{where[0]} port {where[1]}: {error}; is `controller enrol` waiting there?"
        ) from error
    finally:
        connection.close()
