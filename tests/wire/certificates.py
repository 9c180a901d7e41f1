"""A certificate authority of our own, for as long as a test takes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tailrace.config import TlsConfig


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._key, self._name, self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.roots = folder / f"{name}.pem"
        self.roots.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str, file: str, days: int = 1, common_name: str | None = None) -> TlsConfig:
        """`common_name`: for those who go by it, as etcd does; we do not."""
        subject = [] if common_name is None else [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(key, x509.Name(subject), self._name, days)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=not subject)
            .sign(self._key, hashes.SHA256())
        )
        paths = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsConfig(certificate=str(paths[0]), key=str(paths[1]), roots=str(self.roots))


def _builder(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, days: int = 1
) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=9 + days))
    )


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
