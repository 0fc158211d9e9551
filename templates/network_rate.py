"""The network from one host to the next: takes bytes on a port, and sends some to another host.

Run by `rhinoctl check` on several hosts at once, with what is asked as JSON on its standard input:
`port` is None where nothing will come, `to` where nothing is to be sent. It decides nothing, keeps
nothing, and ends by itself.
"""

import contextlib
import json
import socket
import sys
import threading
import time

ASKED = json.load(sys.stdin)
SECRET = ASKED["secret"].encode()
CHUNK = b"\0" * 262144
END = time.monotonic() + ASKED["limit_s"]
SAID = {"bytes_s": None, "fault": "", "listening": ""}


def left():
    return max(0.05, END - time.monotonic())


def listen():
    """On all addresses of the host, of both families where it has both."""
    where = ("", ASKED["port"])
    try:
        return socket.create_server(where, family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        return socket.create_server(where)


def take(server):
    """Count what comes over the one connection that knows the secret."""
    while time.monotonic() < END:
        server.settimeout(left())
        with contextlib.suppress(OSError), server.accept()[0] as peer:
            peer.settimeout(left())
            if peer.recv(len(SECRET), socket.MSG_WAITALL) != SECRET:
                continue
            began, count, buffer = time.monotonic(), 0, bytearray(len(CHUNK))
            while size := peer.recv_into(buffer):
                count += size
            SAID["bytes_s"] = count / max(1e-6, time.monotonic() - began)
            return


def send():
    """To the next host, which may begin to listen a little later than we."""
    while True:
        try:
            peer = socket.create_connection(tuple(ASKED["to"]), timeout=left())
            break
        except OSError as fault:
            if not isinstance(fault, ConnectionRefusedError) or left() < 0.2:
                SAID["fault"] = fault.strerror or str(fault)
                return
            time.sleep(0.1)
    try:
        with peer:
            peer.sendall(SECRET)
            until = time.monotonic() + ASKED["seconds"]
            while time.monotonic() < until:
                peer.sendall(CHUNK)
    except OSError as fault:
        SAID["fault"] = fault.strerror or str(fault)


def send_if_asked():
    if ASKED["to"] is not None:
        send()


if ASKED["port"] is None:
    send_if_asked()
else:
    try:
        with listen() as server:
            taking = threading.Thread(target=take, args=(server,), daemon=True)
            taking.start()
            send_if_asked()
            taking.join(left())
    except OSError as fault:
        SAID["listening"] = fault.strerror or str(fault)
        send_if_asked()
print(json.dumps(SAID))
