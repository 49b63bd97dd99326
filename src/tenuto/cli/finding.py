"""What `tenuto doctor` finds, whatever the database."""

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One line. `advice`: what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""
