"""The cluster's own certificate authority, and the controller's TLS context for the agent link.

An agent is identified by its certificate alone: the subject alternative name is the server's name.
Agents' certificates are valid for TLS clients only and the controller's for TLS servers only, so
that an attacker who has an agent's certificate cannot pose as the controller.
"""

from __future__ import annotations

import datetime
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from placewire.controller.agents.private_files import read_private, write_private
from placewire.controller.agents.revocations import Bearer, Revocations
from placewire.controller.errors import UsageError
from placewire.optimizer.cluster_plan.values import server_name

CONTROLLER_NAME = "controller"
_CERTIFICATE = "authority.crt"
Kind = Literal["agent", "controller"]

# Agents renew their certificates from half of this on, so a cluster may lie idle for 15 days.
AGENT_LIFETIME_SECONDS = 30 * 86_400.0
_AUTHORITY_LIFETIME_SECONDS = 10 * 365 * 86_400.0
# A certificate begins this much in the past, so that a server whose clock is late accepts it.
_CLOCK_SKEW_SECONDS = 300.0


@dataclass(frozen=True)
class Issued:
    certificate_file: Path
    key_file: Path


class Authority:
    """The authority's key (EC P-256) never leaves its folder. certificate_file is for agents."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self._key, self._certificate = key, certificate
        self.certificate_file = directory / _CERTIFICATE
        self.revocations = Revocations(directory)

    @property
    def sha256(self) -> str:
        """Of the certificate in DER. A token carries it, so a new agent knows its authority."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def not_before_unix(self, name: str) -> float | None:
        """When a certificate of this name must not begin, or it is denied: before this time. None:
        none was denied. One that was issued in the very second of a denial counts as denied."""
        since = self.revocations.denied_before(name)
        return since - _CLOCK_SKEW_SECONDS if since else None

    @staticmethod
    def is_made(directory: Path) -> bool:
        """Whether there is an authority, which perhaps cannot be used."""
        try:
            return (directory / _CERTIFICATE).exists()
        except OSError:  # Another user's folder: `load` says so.
            return True

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Creates the authority at first use. Raises UsageError where the folder is unusable."""
        certificate_file, key_file = directory / _CERTIFICATE, directory / "authority.key"
        try:
            if not certificate_file.exists():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                with Revocations(directory).locked():
                    # Another command may have made it while this one waited for the lock.
                    if not certificate_file.exists():
                        _create(certificate_file, key_file)
            key = serialization.load_pem_private_key(read_private(key_file), password=None)
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            if key.public_key() != certificate.public_key():
                raise ValueError("authority.key is not the key of authority.crt")
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("authority.key is of another kind than Placewire makes")
        except OSError as error:
            raise UsageError(
                f"the certificate authority cannot be used: {error.strerror}",
                where=str(error.filename or directory),
                remedy="run as the user that owns it, end the process that holds its lock, or give "
                "another --state-dir",
            ) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(
                f"the certificate authority cannot be used: {error}",
                where=str(key_file),
                remedy="restore authority.key and authority.crt from one backup; or move the "
                f"folder {directory} away, so that a new authority is made, and enrol every server "
                "again",
            ) from error
        return cls(directory, key, certificate)

    def issue(self, name: str, kind: Kind, directory: Path, *, lifetime_seconds: float) -> Issued:
        """Writes NAME.crt (the certificate, then the authority's) and NAME.key, both of mode 0600.
        Raises UsageError where the name is no server name, or the folder cannot be written to."""
        try:
            server_name(name)  # The name becomes part of two paths.
        except ValueError as error:
            raise UsageError(str(error), where="the server's name") from error
        key = ec.generate_private_key(ec.SECP256R1())
        chain = self._chain(name, key.public_key(), kind, lifetime_seconds)
        issued = Issued(directory / f"{name}.crt", directory / f"{name}.key")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(issued.key_file, _key_pem(key))
            write_private(issued.certificate_file, chain)
        except OSError as error:
            raise UsageError(
                f"the certificate cannot be written: {error.strerror}",
                where=str(error.filename or directory),
                remedy="give a folder that this user can write to",
            ) from error
        return issued

    def own_context(self, *, lifetime_seconds: float, agents_only: bool = True) -> ssl.SSLContext:
        """The TLS context of a listening controller, with a new certificate. Its key stays in
        memory, because a controller that is killed would leave a file. agents_only: as in
        server_context."""
        with self._own(lifetime_seconds) as issued:
            return server_context(self.certificate_file, issued, agents_only=agents_only)

    def renew_own(self, context: ssl.SSLContext, *, lifetime_seconds: float) -> None:
        """Gives a context of `own_context` a new certificate, for all later connections. Raises
        OSError where this process has no descriptor left."""
        with self._own(lifetime_seconds) as issued:
            context.load_cert_chain(issued.certificate_file, issued.key_file)

    @contextmanager
    def _own(self, lifetime_seconds: float) -> Iterator[Issued]:
        key = ec.generate_private_key(ec.SECP256R1())
        chain = self._chain(CONTROLLER_NAME, key.public_key(), "controller", lifetime_seconds)
        descriptor = os.memfd_create("controller.pem")
        try:
            os.write(descriptor, _key_pem(key) + chain)
            file = Path(f"/proc/self/fd/{descriptor}")
            yield Issued(file, file)
        finally:
            os.close(descriptor)

    def sign(
        self,
        request_pem: str,
        server: str,
        *,
        lifetime_seconds: float,
        renews: Bearer | None = None,
    ) -> bytes:
        """Signs the key of a PKCS #10 request; returns the new agent certificate, then the
        authority's (PEM).

        server: whom a token, or the certificate to be renewed, proves the request to come from.
        What else the request asks for is ignored. Raises UsageError where it is no valid request,
        names another server, renews a certificate that is denied, or where the new certificate
        would be denied at once.
        """
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
            named = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            key = request.public_key()
            valid = request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise UsageError(f"no request for a certificate: {error}", where=server) from error
        if [one.value for one in named] != [server]:
            raise UsageError("asks for a certificate of another name", where=server)
        if not valid or not (
            isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == ec.SECP256R1.name
        ):
            raise UsageError("the request is not signed by a P-256 key", where=server)
        return self._chain(server, key, "agent", lifetime_seconds, renews=renews)

    def _chain(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        kind: Kind,
        lifetime_seconds: float,
        renews: Bearer | None = None,
    ) -> bytes:
        purposes = ExtendedKeyUsageOID
        usage = purposes.CLIENT_AUTH if kind == "agent" else purposes.SERVER_AUTH
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(name, key, self._certificate.subject, lifetime_seconds, authority=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(issuer, critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        if kind == "agent":
            try:
                # A command that serves renewals may have leases to renew, so it does not wait: the
                # agent asks again later.
                with self.revocations.locked(waits=renews is None):
                    if renews is not None and self.revocations.is_denied(renews):
                        raise UsageError("its certificate is denied", where=name)
                    now = time.time()
                    if now < (since := self.revocations.denied_before(name)):
                        raise _would_be_denied(name, since)
                    expires_unix = now + lifetime_seconds
                    self.revocations.record(name, certificate.serial_number, expires_unix)
            except OSError as error:
                raise UsageError(
                    f"the certificate cannot be recorded: {error.strerror}",
                    where=str(error.filename or self.certificate_file.parent),
                    remedy="free space on the disk, run as the user that owns the authority, or "
                    "end the process that holds its lock",
                ) from error
        return _pem(certificate) + _pem(self._certificate)


def server_context(
    authority_file: Path, issued: Issued, *, agents_only: bool = True
) -> ssl.SSLContext:
    """The controller's side of TLS. agents_only: a client must show an agent certificate of this
    authority; otherwise every client is accepted, as enrolment needs."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority_file))
    if agents_only:
        context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context


def bearer_of(certificate: dict[str, object] | None) -> Bearer:
    """Reads what ssl's getpeercert() returns. The name is empty where there is no DNS name."""
    found = certificate or {}
    names = found.get("subjectAltName", ())
    assert isinstance(names, tuple)
    begins = _unix_seconds(str(found["notBefore"])) if found else 0.0
    return Bearer(
        name=next((value for kind, value in names if kind == "DNS"), ""),
        serial=str(int(str(found.get("serialNumber", "0")), 16)),
        issued_unix=begins + _CLOCK_SKEW_SECONDS,
        expires_unix=_unix_seconds(str(found["notAfter"])) if found else 0.0,
    )


@lru_cache(maxsize=4096)
def _unix_seconds(certificate_time: str) -> float:
    """Cached, because every message of an agent comes with the same two times."""
    return ssl.cert_time_to_seconds(certificate_time)


def _create(certificate_file: Path, key_file: Path) -> None:
    """Writes the key first, because a certificate without its key would never be replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, lifetime = "Placewire authority", _AUTHORITY_LIFETIME_SECONDS
    builder = _builder(name, key.public_key(), _subject(name), lifetime, authority=True)
    write_private(key_file, _key_pem(key))
    write_private(certificate_file, _pem(builder.sign(key, hashes.SHA256())), mode=0o644)


def _would_be_denied(name: str, since_unix: float) -> UsageError:
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_unix))
    return UsageError(
        f"every certificate that is issued before {until} is denied, and this machine's clock says "
        "that it is earlier",
        where=name,
        remedy=f"set this machine's clock right, then run `controller authority deny {name}` once "
        "more: it denies what was issued until now, and nothing later",
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    lifetime_seconds: float,
    *,
    authority: bool,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=_CLOCK_SKEW_SECONDS))
        .not_valid_after(now + datetime.timedelta(seconds=lifetime_seconds))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted)
