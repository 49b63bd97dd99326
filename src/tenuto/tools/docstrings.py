"""A tool's docstring, for the model: what the tool is for, and what each parameter means.

Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param name:`) styles are read. What comes
after the first section is for programmers, and left out.
"""

import inspect
import re
from collections.abc import Collection

_PARAMETERS = r"Args|Arguments|Parameters|Params|Other Parameters|Keyword Arg(?:ument)?s"
_OTHERS = r"Returns?|Yields?|Raises|Examples?|Notes?|See Also|Warnings?|Attributes|References"
_SECTION = re.compile(rf"(?:(?P<parameters>{_PARAMETERS})|{_OTHERS})(?P<colon>:)?\s*")
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(?P<kind>\w+)(?:\s+(?:[^:]*?\s)??\*{0,2}(?P<name>\w+))?\s*:\s*(?P<text>.*)")
_GOOGLE = re.compile(r"\s+\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)")
_NUMPY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?::.*)?(?P<text>)")


def describe(docstring: str | None, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the description of each of `names` that has one."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    text: list[str] = []
    told: dict[str, list[str]] = {}
    entry: re.Pattern[str] | None = None
    in_text, name = True, ""
    for index, line in enumerate(lines):
        underlined = index + 1 < len(lines) and bool(_UNDERLINE.fullmatch(lines[index + 1]))
        section, field = _SECTION.fullmatch(line), _FIELD.fullmatch(line)
        if section and (section["colon"] or underlined):
            in_text, name = False, ""
            entry = (_NUMPY if underlined else _GOOGLE) if section["parameters"] else None
        elif field and field["kind"] in ("param", "parameter", "arg", "argument", "key", "keyword"):
            in_text, entry, name = False, None, field["name"] or ""
            told[name] = [field["text"]]
        elif field and field["kind"] in ("return", "returns", "rtype", "type", "raise", "raises", "yields"):
            in_text, entry, name = False, None, ""
        elif in_text:
            text.append(line)
        elif entry and (found := entry.fullmatch(line)) and found["name"] in names:
            name = found["name"]
            told[name] = [found["text"]]
        elif name and not _UNDERLINE.fullmatch(line):
            told[name].append(line)
    meanings = {key: " ".join(" ".join(value).split()) for key, value in told.items() if key in names}
    return "\n".join(text).strip(), {key: value for key, value in meanings.items() if value}
