"""Who is alive: each worker's process holds a lock on a file beside the database.

The kernel drops the lock when the process dies, however it dies. So whoever gets the lock knows that the
worker is gone, and while keeping it removes the worker's row, its leases and last the file. A starting
worker locks its file before its row is written. Several stores of one process do not share locks: they
belong to the open file, not to the process.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
from pathlib import Path

from tenuto.errors import InvalidInput, StoreError

_OWNER = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_owner(owner: str) -> None:
    """Raises `InvalidInput`: an owner is part of a file name."""
    if not _OWNER.fullmatch(owner):
        raise InvalidInput(f"worker name {owner!r} may have 1 to 100 letters, digits, '.', '_' and '-' only")


def lock_path(database: str, owner: str) -> str:
    return f"{database}.worker-{owner}.lock"


def owners_with_files(database: str) -> set[str]:
    """Owners whose lock file is there; some may have died before their row was written."""
    prefix, suffix = lock_path(database, "\0").split("\0")
    found = glob.iglob(f"{glob.escape(prefix)}*{suffix}")
    return {name for path in found if _OWNER.fullmatch(name := path[len(prefix) : -len(suffix)])}


def lock_worker(database: str, owner: str) -> int | None:
    """Take an owner's lock; None when somebody alive has it. Raises `StoreError`. Never blocks."""
    path = lock_path(database, owner)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        # Between opening and locking somebody may have removed the file: then this lock means nothing.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def sign_lock(descriptor: int) -> None:
    """For people who wonder whose file it is."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid()}).encode())


def unlock_worker(database: str, owner: str, descriptor: int) -> None:
    """Remove the file while its lock is still ours, then let go."""
    with contextlib.suppress(OSError):
        Path(lock_path(database, owner)).unlink()
    os.close(descriptor)


def is_alive(database: str, owner: str) -> bool:
    """Whether some process holds the owner's lock. A shared lock asks, so that two who ask do not meet."""
    try:
        descriptor = os.open(lock_path(database, owner), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
