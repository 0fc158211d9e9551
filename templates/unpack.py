"""Unpacks a release that comes through stdin: VERSIONS NAME SHA256. Run by a host's interpreter, of
Python 3.11 or later, before there is anything of ours. Says nothing, or on stderr why it failed."""

import compileall
import fcntl
import hashlib
import os
import shutil
import sys
import tarfile


class Reading:
    """A file whose bytes are counted into a digest as they are read."""

    def __init__(self, file):
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size):
        data = self._file.read(size)
        self.digest.update(data)
        return data


def unpack(new, sha256):
    reading = Reading(sys.stdin.buffer)
    with tarfile.open(fileobj=reading, mode="r|gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(new, filter="data")
        else:  # 3.11.3 and before
            archive.extractall(new)
    while reading.read(1 << 20):
        continue
    if reading.digest.hexdigest() != sha256:
        raise OSError("what has arrived is not what was sent")


def main(versions, name, sha256):
    os.umask(0o022)
    os.makedirs(versions, exist_ok=True)
    lock = os.open(versions, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another installation is under way in " + versions
    for left in os.listdir(versions):
        if left.startswith((".new-", ".old-")):
            shutil.rmtree(os.path.join(versions, left), ignore_errors=True)
    whole, new = os.path.join(versions, name), os.path.join(versions, ".new-" + name)
    if os.path.isdir(whole):
        return None
    try:
        unpack(new, sha256)
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
