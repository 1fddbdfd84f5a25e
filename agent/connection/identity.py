"""This server's key and certificate in one PEM file: makes, writes and checks them."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from placewire.agent.contract.config import AgentConfig
from placewire.agent.own_files import read_ordinary


class NewKey(NamedTuple):
    """A key without a certificate, and the request for its certificate."""

    key_pem: bytes
    request_pem: str


def new_key(server: str) -> NewKey:
    """EC P-256. The request only names the server; the authority decides what the server may do."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return NewKey(key_pem, request.public_bytes(serialization.Encoding.PEM).decode())


def keep(file: Path, key_pem: bytes, chain_pem: str, *, like: Path) -> None:
    """Writes key and chain to `file`, with mode 0600 and the owner of `like`. Raises OSError, and
    ValueError where the certificate is not this key's."""
    certificate = x509.load_pem_x509_certificate(chain_pem.encode())
    key = serialization.load_pem_private_key(key_pem, password=None)
    if key.public_key() != certificate.public_key():
        raise ValueError("the certificate that came back is for another key")
    write_private(file, key_pem + chain_pem.encode(), like=like)


def require_room(file: Path, key_pem: bytes, *, like: Path) -> None:
    """Writes the key to another file in the folder of `file`, and removes it again. Raises OSError
    where `file` could not be written either."""
    trial = file.with_name(file.name + ".key")
    write_private(trial, key_pem, like=like)
    trial.unlink()


def write_private(file: Path, content: bytes, *, like: Path, mode: int = 0o600) -> None:
    """Writes the file as a whole or not at all, with the owner of `like`. Raises OSError."""
    fresh, owner = file.with_name(file.name + ".new"), like.stat()
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as out:
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        out.write(content)
        out.flush()
        os.fsync(descriptor)
    fresh.replace(file)


def seconds_to_half_life(file: Path) -> float:
    """Seconds until half of its life is over, or negative. Raises OSError, ValueError."""
    certificate = _certificate_in(file)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    half = begin + (end - begin) / 2
    return (half - datetime.datetime.now(datetime.UTC)).total_seconds()


def require_serving(
    config: AgentConfig, authority_sha256: str | None, not_before_unix: float | None = None
) -> datetime.datetime:
    """Returns until when this server's certificate opens the link, as far as the server can know.

    authority_sha256: digest of the controller's authority in DER; None: of the one that the server
    has. not_before_unix: the controller denies a certificate that begins earlier; None: none.
    Raises OSError, and ValueError with the reason where the certificate is not valid.
    """
    certificate = _certificate_in(Path(config.certificate_file))
    authority = x509.load_pem_x509_certificate(read_ordinary(Path(config.authority_file)))
    key = serialization.load_pem_private_key(read_ordinary(Path(config.key_file)), password=None)
    if authority_sha256 not in (None, authority.fingerprint(hashes.SHA256()).hex()):
        raise ValueError("it is of another authority than the controller's")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ValueError(f"{config.authority_file} is not the authority that issued it") from error
    if key.public_key() != certificate.public_key():
        raise ValueError("it is for another key")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if config.server not in names.get_values_for_type(x509.DNSName):
        raise ValueError(f"it is for another server than {config.server}")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= datetime.datetime.now(datetime.UTC) < end:
        raise ValueError(f"it is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC")
    if not_before_unix is not None and begin.timestamp() < not_before_unix:
        raise ValueError("it was denied by `controller authority deny`")
    return end


def _certificate_in(file: Path) -> x509.Certificate:
    """The file's first certificate; a key may stand before it. Raises OSError, ValueError."""
    text = read_ordinary(file)
    return x509.load_pem_x509_certificate(text[max(0, text.find(b"-----BEGIN CERT")) :])
