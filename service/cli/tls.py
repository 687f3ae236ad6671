"""TLS from two files: checked at the start, and read again when they change."""

import logging
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_EXPLICIT_VERSION: Final = 0xA0


class TlsError(Exception):
    """The files cannot be used; the message names file and setting."""


class TlsFiles:
    """A certificate chain with its key, and the context that serves them.

    Attributes:
        context: for servers; new connections get what the files hold now.
        expires_at: when the certificate expires, in seconds since 1970.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read the files.

        Raises:
            TlsError: they cannot be used.
        """
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.expires_at = 0.0
        self._stamps = self._look_at_both()
        self._load()

    def look(self) -> None:
        """Read the files again if they have changed; if they cannot be used, the old ones stay in force."""
        stamps = self._look_at_both()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._load()
        except TlsError as error:
            logger.error("TLS: %s; the old certificate stays in force", error)  # noqa: TRY400 - it says all
        else:
            logger.info("TLS: new certificate, until %s", datetime.fromtimestamp(self.expires_at, UTC).date())

    def _load(self) -> None:
        try:
            chain = self._certificate.read_text(encoding="ascii", errors="replace")
            expires_at = expiry(ssl.PEM_cert_to_DER_cert(_first_certificate(chain)))
        except OSError as error:
            raise TlsError(
                f"{self._certificate} cannot be read: {error.strerror}; setting CONCHE_TLS_CERT"
            ) from error
        except ValueError as error:
            raise TlsError(
                f"{self._certificate} is no certificate in PEM; setting CONCHE_TLS_CERT"
            ) from error
        try:
            self._key.read_bytes()
        except OSError as error:
            raise TlsError(f"{self._key} cannot be read: {error.strerror}; setting CONCHE_TLS_KEY") from error
        self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a context is left in halves by a failure
        self._load_into(self.context)
        self.expires_at = expires_at

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            # Without a password to give, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsError(
                    f"{self._key} is not the key of {self._certificate}; settings CONCHE_TLS_KEY and "
                    "CONCHE_TLS_CERT"
                ) from error
            raise TlsError(
                f"{self._key} is no key in PEM without a password, or {self._certificate} is damaged; "
                "settings CONCHE_TLS_KEY and CONCHE_TLS_CERT"
            ) from error

    def _look_at_both(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return stamps


def expiry(certificate: bytes) -> float:
    """When a certificate expires, in seconds since 1970.

    The standard library tells that of certificates of the other side only.

    Source: RFC 5280, section 4.1.

    Args:
        certificate: in DER.

    Raises:
        ValueError: it is none.
    """
    (_, content), *_ = _elements(certificate)
    (_, to_be_signed), *_ = _elements(content)
    fields = list(_elements(to_be_signed))
    # Version (unless it is the first), serial number, algorithm of the signature, issuer, validity.
    place = 4 if fields and fields[0][0] == _EXPLICIT_VERSION else 3
    tag, validity = fields[place] if len(fields) > place else (0, b"")
    times = list(_elements(validity)) if tag == _SEQUENCE else []
    if len(times) != 2:
        raise ValueError("a certificate has a first and a last moment")
    tag, moment = times[1]
    text = moment.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year; from 50 on, of the last century
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("a moment in a certificate is one of two kinds")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element of DER."""
    at = 0
    while at < len(content):
        if len(content) < at + 2:
            raise ValueError("cut off")
        tag, length = content[at], content[at + 1]
        at += 2
        if length >= 0x80:
            digits = length - 0x80
            length = int.from_bytes(content[at : at + digits], "big")
            at += digits
        if at + length > len(content):
            raise ValueError("cut off")
        yield tag, content[at : at + length]
        at += length


def _first_certificate(chain: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in chain or end not in chain:
        raise ValueError("no certificate")
    return chain[chain.index(begin) : chain.index(end) + len(end)] + "\n"
