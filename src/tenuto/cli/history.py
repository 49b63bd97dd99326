"""What was said at the prompt before, for the arrow keys: kept between sessions, for its owner alone."""

import contextlib
import os
from pathlib import Path
from typing import Final

LINES: Final = 1_000


class History:
    """The line editor's history while a chat runs. Without a file that can be written it lasts as long."""

    def __init__(self, file: Path | None) -> None:
        import readline

        self._readline = readline
        self._file = file
        readline.clear_history()
        # Only what is said to the agent is kept, not the answers to our own questions.
        readline.set_auto_history(False)
        if file is not None:
            with contextlib.suppress(OSError):
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
                file.chmod(0o600)
                self._load(file)

    def _load(self, file: Path) -> None:
        # Read and written here: line editors differ in what they take for a history file.
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) > 2 * LINES:
            file.write_text("\n".join(lines[-LINES:]) + "\n", encoding="utf-8")
        for line in lines[-LINES:]:
            self._readline.add_history(line)

    def add(self, line: str) -> None:
        """Keep what was said, in one line."""
        line = " ".join(line.splitlines())
        length = self._readline.get_current_history_length()
        if not line.strip() or (length and self._readline.get_history_item(length) == line):
            return
        self._readline.add_history(line)
        if self._file is not None:
            # The one line alone: another chat may have written meanwhile.
            with contextlib.suppress(OSError), self._file.open("ab") as file:
                file.write(line.encode(errors="replace") + b"\n")


def history_file() -> Path | None:
    """Where programs keep such things, by the XDG base directory specification; None without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        place = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return place / "tenuto" / "history"
