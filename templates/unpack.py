"""Unpacks a release that comes through stdin: VERSIONS NAME SHA256 SILENT_S WAIT_S. Run by a host's
interpreter, of Python 3.11 or later, before there is anything of ours. Says nothing, or on stderr
why it failed.

One whose sender is gone without a word gives up after SILENT_S: nobody ends it, as the connection
looks alive from here. The next one waits for that, WAIT_S, and takes nothing from one that is fed.
"""

import compileall
import fcntl
import hashlib
import os
import select
import shutil
import sys
import tarfile
import time

UNDER_WAY = 75


class Reading:
    """A pipe whose bytes are counted into a digest as they are read."""

    def __init__(self, pipe, silent_s):
        self._pipe = pipe
        self._silent_s = silent_s
        self.digest = hashlib.sha256()

    def read(self, size):
        if not select.select([self._pipe], [], [], self._silent_s)[0]:
            raise OSError(f"nothing has come for {self._silent_s:g} s")
        data = os.read(self._pipe, size)
        self.digest.update(data)
        return data


def lock(versions, wait_s):
    """Whether nobody else installs there any more; until this process ends nobody does."""
    directory = os.open(versions, os.O_RDONLY)
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)


def unpack(new, sha256, silent_s):
    reading = Reading(sys.stdin.fileno(), silent_s)
    with tarfile.open(fileobj=reading, mode="r|gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(new, filter="data")
        else:  # 3.11.3 and before
            archive.extractall(new)
    while reading.read(1 << 20):
        continue
    if reading.digest.hexdigest() != sha256:
        raise OSError("what has arrived is not what was sent")


def main(versions, name, sha256, silent_s, wait_s):
    os.umask(0o022)
    os.makedirs(versions, exist_ok=True)
    if not lock(versions, float(wait_s)):
        return UNDER_WAY
    for left in os.listdir(versions):
        if left.startswith((".new-", ".old-")):
            shutil.rmtree(os.path.join(versions, left), ignore_errors=True)
    whole, new = os.path.join(versions, name), os.path.join(versions, ".new-" + name)
    if os.path.isdir(whole):
        return None
    try:
        unpack(new, sha256, float(silent_s))
        # Once, here: the account that runs them may not write there.
        site = os.path.join(new, "site")
        compileall.compile_dir(site, quiet=2, stripdir=new, prependdir=whole)
        os.sync()
        os.rename(new, whole)
    except (OSError, EOFError, tarfile.TarError) as fault:
        shutil.rmtree(new, ignore_errors=True)
        return str(fault)
    return None


sys.exit(main(*sys.argv[1:]))
