"""The cluster's own certificate authority, and the two TLS contexts of the agent link.

An agent is who its certificate says, never what it claims: the subject alternative name is the
server's name. Agents' certificates serve only to dial, the controller's only to be dialled, so that
an agent that was broken into cannot pose as the controller.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from placewire.controller.agents.revocations import Bearer, Revocations
from placewire.controller.errors import UsageError
from placewire.optimizer.cluster_plan.values import server_name

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CONTROLLER_NAME = "controller"
Kind = Literal["agent", "controller"]

# Renewed from half of it on, whenever the link is up: a cluster may lie idle for 15 days.
AGENT_LIFETIME_SECONDS = 30 * 86_400.0
_AUTHORITY_LIFETIME_SECONDS = 10 * 365 * 86_400.0
# Clocks of servers differ; a certificate must be valid on a slow one at once.
_CLOCK_SKEW_SECONDS = 300.0


@dataclass(frozen=True)
class Issued:
    certificate_file: Path
    key_file: Path


class Authority:
    """EC P-256. certificate_file is public and goes to every agent; the key never leaves here."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self._key, self._certificate = key, certificate
        self.certificate_file = directory / "authority.crt"
        self.revocations = Revocations(directory)

    @property
    def sha256(self) -> str:
        """Of its certificate in DER: by this an agent knows it that knows nobody yet."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """The authority kept in this folder, made at its first use. Raises UsageError where the
        folder cannot be used."""
        certificate_file, key_file = directory / "authority.crt", directory / "authority.key"
        try:
            if not certificate_file.exists():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _found(certificate_file, key_file)
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except OSError as error:
            raise UsageError(
                f"the certificate authority cannot be used: {error.strerror}",
                where=str(error.filename or directory),
                remedy="run as the user that owns it, or give another --state-dir",
            ) from error
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the certificate authority cannot be used: {error}",
                where=str(key_file),
                remedy="restore authority.key and authority.crt, or give another --state-dir",
            ) from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(directory, key, certificate)

    def issue(
        self,
        name: str,
        kind: Kind,
        directory: Path,
        *,
        lifetime_seconds: float,
        addresses: tuple[str, ...] = (),
    ) -> Issued:
        """Writes NAME.crt (with the authority's) and NAME.key, mode 0600, into the folder.

        addresses: IP addresses that the certificate is valid for, beside the name. Raises
        UsageError where the name is no server's, or the folder cannot be written to.
        """
        try:
            server_name(name)  # it becomes part of two paths
        except ValueError as error:
            raise UsageError(str(error), where="the server's name") from error
        key = ec.generate_private_key(ec.SECP256R1())
        chain = self._chain(name, key.public_key(), kind, lifetime_seconds, addresses)
        issued = Issued(directory / f"{name}.crt", directory / f"{name}.key")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_private(issued.key_file, _key_pem(key))
            _write_private(issued.certificate_file, chain)
        except OSError as error:
            raise UsageError(
                f"the certificate cannot be written: {error.strerror}",
                where=str(error.filename or directory),
                remedy="give a folder that this user can write to",
            ) from error
        return issued

    def own_context(self, *, lifetime_seconds: float, agents_only: bool = True) -> ssl.SSLContext:
        """Of a controller that listens, with a certificate of its own. The key is never on a disk:
        a controller that is killed would leave it there. agents_only: as of server_context."""
        key = ec.generate_private_key(ec.SECP256R1())
        chain = self._chain(CONTROLLER_NAME, key.public_key(), "controller", lifetime_seconds)
        descriptor = os.memfd_create("controller.pem")
        try:
            os.write(descriptor, _key_pem(key) + chain)
            file = Path(f"/proc/self/fd/{descriptor}")
            issued = Issued(file, file)
            return server_context(self.certificate_file, issued, agents_only=agents_only)
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
        """A certificate for dialling, and the authority's behind it (PEM), for the key of a PKCS
        #10 request. The request's own wishes count for nothing: who it is for is known by a token,
        or by the certificate that it renews. Raises UsageError where it is none, names another, or
        renews one that is denied.
        """
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
            named = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            key = request.public_key()
            valid = request.is_signature_valid
        except (ValueError, TypeError) as error:
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
        addresses: tuple[str, ...] = (),
        renews: Bearer | None = None,
    ) -> bytes:
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        usage = {
            "agent": ExtendedKeyUsageOID.CLIENT_AUTH,
            "controller": ExtendedKeyUsageOID.SERVER_AUTH,
        }[kind]
        serial = x509.random_serial_number()
        builder = (
            _builder(name, key, self._certificate.subject, lifetime_seconds, serial)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if kind == "agent":
            try:
                with self.revocations.locked():
                    if renews is not None and self.revocations.is_denied(renews):
                        raise UsageError("its certificate is denied", where=name)
                    self.revocations.record(name, serial, time.time() + lifetime_seconds)
            except OSError as error:
                raise UsageError(
                    f"the certificate cannot be noted: {error.strerror}",
                    where=str(error.filename or self.certificate_file.parent),
                    remedy="make room, or run as the user that owns the authority",
                ) from error
        return _sign(builder, self._key) + self.certificate_file.read_bytes()


def server_context(
    authority_file: Path, issued: Issued, *, agents_only: bool = True
) -> ssl.SSLContext:
    """For the controller. agents_only: only who has a certificate of this authority for dialling
    gets in; else anybody, as for enrolment."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority_file))
    if agents_only:
        context.verify_mode = ssl.CERT_REQUIRED
    return _with_identity(context, issued)


def client_context(authority_file: Path, issued: Issued) -> ssl.SSLContext:
    """For an agent; the name to expect of the controller is CONTROLLER_NAME."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority_file))
    return _with_identity(context, issued)


def peer_name(certificate: dict[str, object] | None) -> str | None:
    """The DNS name in what ssl's getpeercert() gave."""
    names = (certificate or {}).get("subjectAltName", ())
    assert isinstance(names, tuple)
    return next((value for kind, value in names if kind == "DNS"), None)


def bearer_of(certificate: dict[str, object] | None) -> Bearer:
    """Of what getpeercert() gave."""
    found = certificate or {}
    begins = _unix_seconds(str(found["notBefore"])) if found else 0.0
    return Bearer(
        name=peer_name(certificate) or "",
        serial=str(int(str(found.get("serialNumber", "0")), 16)),
        issued_unix=begins + _CLOCK_SKEW_SECONDS,
        expires_unix=_unix_seconds(str(found["notAfter"])) if found else 0.0,
    )


@lru_cache(maxsize=4096)
def _unix_seconds(certificate_time: str) -> float:
    """The same few of each agent come with every message of it."""
    return ssl.cert_time_to_seconds(certificate_time)


def _with_identity(context: ssl.SSLContext, issued: Issued) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context


def _found(certificate_file: Path, key_file: Path) -> None:
    """A new authority. The key first: a certificate without its key would never be replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = "Placewire authority"
    builder = (
        _builder(
            name,
            key.public_key(),
            _subject(name),
            _AUTHORITY_LIFETIME_SECONDS,
            x509.random_serial_number(),
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
    )
    _write_private(key_file, _key_pem(key))
    _write_private(certificate_file, _sign(builder, key), mode=0o644)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    lifetime_seconds: float,
    serial: int,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(seconds=_CLOCK_SKEW_SECONDS))
        .not_valid_after(now + datetime.timedelta(seconds=lifetime_seconds))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
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


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_private(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Never readable by others, not even for a moment; whole or not at all."""
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as sink:
        sink.write(content)
        os.fsync(sink.fileno())
    fresh.replace(file)
