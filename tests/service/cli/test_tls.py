"""TLS from files: served, checked at the start, taken anew when they change.

The certificates are self-signed, made by ``openssl req -x509 -newkey ec -pkeyopt
ec_paramgen_curve:prime256v1 -nodes -days 36500`` (the second: 7300) with the address 127.0.0.1.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from service.cli.tls import TlsError, TlsFiles, expiry
from service.settings import InvalidSettingsError, load_settings
from tests.service.cli.test_serve import HANG_S, Running, _start

CERTIFICATES = Path(__file__).parent / "certificates"
FIRST, SECOND = (
    ssl.PEM_cert_to_DER_cert((CERTIFICATES / f"{name}.pem").read_text()) for name in ("first", "second")
)
# `openssl x509 -enddate`; beyond 2049 a certificate writes its years in another way.
FIRST_UNTIL, SECOND_UNTIL = 4_949_595_002, 2_426_715_002


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, to be changed."""
    for kind in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"first.{kind}", tmp_path / f"tls.{kind}")
    return tmp_path / "tls.pem", tmp_path / "tls.key"


def put(name: str, path: Path) -> None:
    """Put another file in the place of ``path``, with another time, whatever the clock shows."""
    shutil.copy(CERTIFICATES / name, path)
    os.utime(path, (1, 1))


def test_the_end_of_a_certificate_is_read() -> None:
    """Both ways of writing a year."""
    assert expiry(FIRST) == FIRST_UNTIL
    assert expiry(SECOND) == SECOND_UNTIL


@pytest.mark.parametrize("length", range(0, 300, 7))
def test_what_is_no_certificate_is_a_fault_of_the_file(length: int) -> None:
    """However much of one is there; 300 bytes reach beyond the validity."""
    with pytest.raises(ValueError, match=r"cut off|not enough values"):
        expiry(FIRST[:length])


@pytest.mark.parametrize("secure", [True, False])
def test_the_image_s_health_check_follows(
    models_folder: Path, files: tuple[Path, Path], *, secure: bool
) -> None:
    """Or a container with TLS would be unhealthy for ever while it serves."""
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text()
    found = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])\n", dockerfile, re.DOTALL)
    assert found
    program = json.loads(found.group(1))[2]
    flags = ("--tls-cert", str(files[0]), "--tls-key", str(files[1])) if secure else ()
    process = _start(models_folder, *flags, CONCHE_FAQ_STORE="none")
    try:
        port = str(urlsplit(Running(process).url).port)
        variables = {"CONCHE_PORT": port, "CONCHE_TLS_CERT": str(files[0]) if secure else ""}
        checked = subprocess.run([sys.executable, "-c", program], env=os.environ | variables, check=False)
        assert checked.returncode == 0
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


def test_https_is_served_and_said(models_folder: Path, files: tuple[Path, Path]) -> None:
    """In the greeting, with a request to paste; the metrics say until when."""
    process = _start(models_folder, "--tls-cert", str(files[0]), "--tls-key", str(files[1]))
    try:
        running = Running(process)
        assert running.url.startswith("https://127.0.0.1:")
        assert f"curl -s {running.url}/embed" in running.greeting
        address = urlsplit(running.url)
        assert address.hostname
        assert address.port
        presented = ssl.get_server_certificate((address.hostname, address.port), timeout=HANG_S)
        assert ssl.PEM_cert_to_DER_cert(presented) == FIRST
        with httpx.Client(base_url=running.url, verify=False, timeout=HANG_S) as client:
            assert client.post("/embed", json={"inputs": "hello"}).status_code == 200
            text = client.get("/metrics").text
        found = re.search(r"^conche_tls_certificate_expiry_timestamp_seconds (\S+)$", text, re.MULTILINE)
        assert found
        assert float(found.group(1)) == FIRST_UNTIL
        with pytest.raises(httpx.HTTPError):  # plain HTTP is not spoken there
            httpx.get(f"http://{address.netloc}/livez", timeout=HANG_S)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("missing.pem", "first.key", r"missing\.pem cannot be read: No such file.*CONCHE_TLS_CERT"),
        ("first.pem", "missing.key", r"missing\.key cannot be read: No such file.*CONCHE_TLS_KEY"),
        ("first.pem", "second.key", r"second\.key is not the key of .*first\.pem"),
        ("first.key", "first.key", r"first\.key is no certificate in PEM"),
        ("first.pem", "first.pem", r"first\.pem is no key in PEM"),
        ("first.pem", "locked.key", r"locked\.key is no key in PEM without a password"),
    ],
)
def test_files_that_cannot_be_used_stop_the_start(certificate: str, key: str, said: str) -> None:
    """Named, with the setting; and nobody is asked for a password."""
    with pytest.raises(TlsError, match=said):
        TlsFiles(CERTIFICATES / certificate, CERTIFICATES / key)


def test_a_start_without_usable_files_is_one_line(models_folder: Path) -> None:
    """As for everything that prevents it."""
    first, second = str(CERTIFICATES / "first.pem"), str(CERTIFICATES / "second.key")
    process = _start(models_folder, "--tls-cert", first, "--tls-key", second)
    output, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (1, "")
    assert len(errors.splitlines()) == 1, errors
    assert "is not the key of" in errors


@pytest.mark.parametrize("alone", ["tls_cert", "tls_key"])
def test_one_file_without_the_other_stops_the_start(alone: str) -> None:
    """Or the service would be plain while its operator believes otherwise."""
    with pytest.raises(InvalidSettingsError, match="CONCHE_TLS_CERT and CONCHE_TLS_KEY"):
        load_settings({(alone,): "file"}, {})


def test_new_files_are_served_without_a_restart(files: tuple[Path, Path]) -> None:
    """Certificates live for months, services for longer; a slip leaves the old one in force."""
    tls = TlsFiles(*files)
    put("second.pem", files[0])
    tls.look()  # the key has not been changed yet
    assert tls.expires_at == FIRST_UNTIL
    assert presented(tls.context) == FIRST
    put("second.key", files[1])
    tls.look()
    assert tls.expires_at == SECOND_UNTIL
    assert presented(tls.context) == SECOND


def presented(context: ssl.SSLContext) -> bytes:
    """The certificate that a client of ``context`` gets to see."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    serving = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asking, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = asking.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate
