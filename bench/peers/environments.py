"""One environment per peer, so that no peer's dependencies are Tenuto's or another peer's.

Each is made on first use from its own fully pinned list in `requirements/`, outside .venv, with the Python
that Tenuto runs on. A stamp names what it was made from; while the stamp fits, nothing runs.
"""

import fcntl
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".bench-venvs"
OWN = "tenuto"
_STAMP = "made-from.txt"


class CannotMake(Exception):
    """The environment could not be made; the words say why, in one line."""


def python_of(name: str) -> Path:
    """The Python of an environment, which is brought up to date first. Raises `CannotMake`."""
    if name == OWN:
        return Path(sys.executable)
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if is_ready(name):
        return python
    with _locked():
        if not is_ready(name):  # another run may just have made it
            _make(name, folder, python)
            (folder / _STAMP).write_text(_wanted(name))
    return python


def is_ready(name: str) -> bool:
    """Whether it is there, and up to date."""
    return name == OWN or _stamp(ENVIRONMENTS / name) == _wanted(name)


def pins(name: str) -> dict[str, str]:
    """The versions that an environment is made with."""
    lines = (HERE / "requirements" / f"{name}.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def _wanted(name: str) -> str:
    return f"{folder_key()}\n{(HERE / 'requirements' / f'{name}.txt').read_text()}"


def folder_key() -> str:
    """An environment cannot be moved, nor used with another Python."""
    return f"{ENVIRONMENTS} {sys.version}"


def _stamp(folder: Path) -> str:
    try:
        return (folder / _STAMP).read_text()
    except OSError:
        return ""


def _make(name: str, folder: Path, python: Path) -> None:
    print(f"bench-peers: making the environment of {name} (once)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # one that was cut off is not trusted
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotMake(f"no environment for {name}: {error}") from error
    listed = HERE / "requirements" / f"{name}.txt"
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--requirement", listed],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            "pip failed without a word"
        ]
        raise CannotMake(f"no environment for {name}: {words[0]}")


@contextmanager
def _locked() -> Iterator[None]:
    """Two runs do not make one environment at the same time; the kernel drops the lock with its holder."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
