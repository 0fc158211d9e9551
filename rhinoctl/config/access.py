"""The access of a person or a Spark driver to a deployed cluster: a directory with all it takes.

`rhinoctl.control.client.locate_controller` reads it, by its path or, below the user's state
directory, by the cluster's name. It may be moved and copied, since its paths are relative; whoever
can read it is let in, so the directory has mode 0700 and its files 0600.
"""

from pathlib import Path

from rhinoctl import __version__
from rhinoctl.config.authority import Issued
from rhinoctl.config.cluster import replace_file, writing_in
from rhinoctl.protocol import codec
from rhinoctl.wire.secret import Secret

CA, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
TOKEN, WIRE_TOKEN = "token", "wire-token"


def write_access(
    directory: Path,
    *,
    controller: str,
    ca: bytes,
    issued: Issued,
    token: Secret,
    wire_token: Secret | None = None,
) -> None:
    """Make the directory, or renew what is in it; `cluster.json` comes last, so that a new one is
    not taken for an access before it is one.

    `controller` is its address, ``https://host:port``; `ca` the authority's certificate; `token`
    that of a role of the API; `wire_token`, which a driver needs, that of the agents. Raises
    UnwritableDirectory.
    """
    with writing_in(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    files = {
        CA: ca,
        CERTIFICATE: issued.certificate,
        KEY: issued.key.reveal().encode(),
        TOKEN: _line(token),
    }
    image = {
        "version": __version__,
        "controller": controller,
        "token_file": TOKEN,
        "tls": {"ca": CA, "certificate": CERTIFICATE, "key": KEY},
    }
    if wire_token is not None:
        files[WIRE_TOKEN] = _line(wire_token)
        image["wire_token_file"] = WIRE_TOKEN
    for name, data in files.items():
        replace_file(directory / name, data)
    replace_file(directory / "cluster.json", codec.dumps(image))


def _line(token: Secret) -> bytes:
    return f"{token.reveal()}\n".encode()
