"""The cluster's certificate authority and the certificates it issues.

Keys are EC P-256. The subject's common name is the node's or operator's name, its organisational unit
the role (`node`, `admin`, `reader`). Private keys are written with mode 0600.
"""

import datetime
import ipaddress
import os
import re
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeagent.model.errors import InvalidInput, InvalidName
from nodeagent.model.ids import check_node_id
from nodeagent.transport.tls import ROLES, Identity

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_OPERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

CERT_FILE, KEY_FILE, CA_FILE, CA_KEY_FILE = "node.pem", "node.key", "ca.pem", "ca.key"


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key as PEM text."""

    cert: str
    key: str

    def __repr__(self) -> str:
        """Never shows the key."""
        return f"KeyPair({certificate_facts(self.cert).name})"


class CertificateFacts(msgspec.Struct, frozen=True):
    """`fingerprint` is SHA-256 in hex; times in milliseconds since the epoch."""

    name: str
    role: str
    issuer: str
    serial: str
    fingerprint: str
    hosts: tuple[str, ...]
    not_before_ms: int
    expires_ms: int


def create_authority(name: str, *, days: int = AUTHORITY_DAYS) -> KeyPair:
    """A new authority for cluster `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority"[:64])])
    start = _now() - _CLOCK_SKEW
    builder = _builder(subject, subject, key.public_key(), start, _now() + datetime.timedelta(days=days))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _key_pem(key))


def issue(
    authority: KeyPair,
    name: str,
    role: str,
    *,
    hosts: tuple[str, ...] = (),
    days: int = CERTIFICATE_DAYS,
) -> KeyPair:
    """A certificate for `name`. If `days` is negative, the certificate has already expired.

    Alternative names: `name` itself for a node, localhost, 127.0.0.1 and `hosts` (names or addresses).

    Raises:
        InvalidName: the name or role is not allowed.
        InvalidInput: the authority cannot be read.
    """
    _check_subject(name, role)
    signer, signer_key = _load(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        ]
    )
    end = _now() + datetime.timedelta(days=days)
    start = min(_now() - _CLOCK_SKEW, end - datetime.timedelta(days=1))
    names = (*((name,) if role == "node" else ()), "localhost", "127.0.0.1", *hosts)
    certificate = (
        _builder(signer.subject, subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
        )
        .sign(signer_key, hashes.SHA256())
    )
    return KeyPair(_pem(certificate), _key_pem(key))


def certificate_facts(pem: str) -> CertificateFacts:
    """Raises `InvalidInput` if `pem` contains no certificate."""
    certificate = _load_certificate(pem)
    return CertificateFacts(
        name=_attribute(certificate.subject, NameOID.COMMON_NAME),
        role=_attribute(certificate.subject, NameOID.ORGANIZATIONAL_UNIT_NAME),
        issuer=_attribute(certificate.issuer, NameOID.COMMON_NAME),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        hosts=_hosts(certificate),
        not_before_ms=_ms(certificate.not_valid_before_utc),
        expires_ms=_ms(certificate.not_valid_after_utc),
    )


def fingerprint(pem: str) -> str:
    """SHA-256 of the certificate, hex."""
    return certificate_facts(pem).fingerprint


def is_issued_by(pem: str, authority_pem: str) -> bool:
    """Whether the authority signed this certificate."""
    try:
        _load_certificate(pem).verify_directly_issued_by(_load_certificate(authority_pem))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def write_identity(directory: Path, pair: KeyPair, ca: str) -> Identity:
    """Write `node.pem`, `node.key` (0600) and `ca.pem` into `directory` (created with mode 0700)."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(directory / KEY_FILE, pair.key)
    (directory / CERT_FILE).write_text(pair.cert)
    (directory / CA_FILE).write_text(ca)
    return identity_in(directory)


def write_authority(directory: Path, authority: KeyPair) -> None:
    """Write `ca.pem` and `ca.key` (0600) into `directory` (created with mode 0700)."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(directory / CA_KEY_FILE, authority.key)
    (directory / CA_FILE).write_text(authority.cert)


def read_authority(directory: Path) -> KeyPair:
    """Raises `InvalidInput` if the directory contains no authority."""
    try:
        return KeyPair((directory / CA_FILE).read_text(), (directory / CA_KEY_FILE).read_text())
    except OSError as error:
        raise InvalidInput(
            f"no certificate authority in {directory}: {error.strerror}",
            next_step="give the directory that contains ca.pem and ca.key",
        ) from error


def identity_in(directory: Path) -> Identity:
    """The paths of the identity that `write_identity` wrote."""
    return Identity(*(str(directory / name) for name in (CERT_FILE, KEY_FILE, CA_FILE)))


def write_private(path: Path, text: str) -> None:
    """Replace `path` with a file of mode 0600; its content is never readable by others."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _check_subject(name: str, role: str) -> None:
    if role not in ROLES:
        raise InvalidName(f"role {role!r} is unknown", next_step=f"use one of {', '.join(ROLES)}")
    if role == "node":
        check_node_id(name)
    elif not _OPERATOR.fullmatch(name):
        raise InvalidName(
            f"operator name {name!r} is not allowed",
            next_step="use 1-64 letters, digits, '.', '_', '@', '-'; begin with a letter or digit",
        )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(start, end - datetime.timedelta(days=1)))
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: tuple[str, ...]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(n.value) for n in names)


def _load(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _load_certificate(authority.cert)
    try:
        key = serialization.load_pem_private_key(authority.key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the authority's key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput("the authority's key is not an EC key")
    return certificate, key


def _load_certificate(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise InvalidInput(f"not a PEM certificate: {error}") from error


def _attribute(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _ms(moment: datetime.datetime) -> int:
    return int(moment.timestamp() * 1000)
