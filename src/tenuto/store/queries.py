"""Named queries, from `.sql` files: each begins with a line `-- name: a sentence that says what for`."""

import re
from pathlib import Path
from types import SimpleNamespace

_NAME = re.compile(r"^-- (\w+): ", re.MULTILINE)


def load_queries(path: Path) -> SimpleNamespace:
    """The queries of a file as attributes. The strings are constants, so a driver's statement cache hits."""
    _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
    names = parts[::2]
    assert len(set(names)) == len(names), f"{path.name} names a query twice"
    queries = (part.partition("\n")[2].strip().removesuffix(";") for part in parts[1::2])
    return SimpleNamespace(**dict(zip(names, queries, strict=True)))
