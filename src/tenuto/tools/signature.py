"""From a function to a JSON schema, and from a model's text to the function's arguments and back.

`Shape` is what can be told of a function when it is defined; `Signature` resolves the annotations and
builds the pydantic model, at first use. The canonical text is written from the validated values, and
`keywords` builds the call from that very text, so what a person saw is what runs.
"""

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tenuto.errors import ConfigurationError
from tenuto.events import clean
from tenuto.limits import MAX_ERROR_CHARACTERS
from tenuto.tools.docstrings import describe
from tenuto.tools.running import ToolContext
from tenuto.tools.text import (
    InvalidArguments,
    altered_numbers,
    encode,
    error_text,
    has_long_number,
    parse,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHOWN_ERRORS = 10


@dataclass(frozen=True)
class Shape:
    """A function as a tool: `parameters` by name, `rest` the `**kwargs` if it has them, `hidden` the names
    that are bound already (self, those of a partial) and no model may give. `scope`: names local to where
    the function was defined, for annotations that are strings.
    """

    name: str
    docstring: str | None
    definition: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    rest: inspect.Parameter | None
    hidden: frozenset[str]
    is_async: bool
    scope: Mapping[str, Any]


def definition_of(function: Any) -> Any:
    """The `def` behind partials, bound methods and callable objects."""
    while isinstance(function, functools.partial) or inspect.ismethod(function):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    call = getattr(type(function), "__call__", None)  # noqa: B004 - wanted is the def itself
    return call if inspect.isfunction(call) else function


def shape_of(function: Callable[..., Any], name: str | None, frame: types.FrameType | None) -> Shape:
    """Look at a function once, when it becomes a tool. Raises `ConfigurationError`."""
    definition = definition_of(function)
    label = name or getattr(definition, "__name__", "") or type(function).__name__
    if label == "__call__":
        label = type(function).__name__
    if not _NAME.fullmatch(label):
        raise ConfigurationError(
            f"tool name {label!r}: use letters, digits, '_' and '-', 64 at most; name=… sets it"
        )
    if inspect.isgeneratorfunction(definition) or inspect.isasyncgenfunction(definition):
        raise ConfigurationError(f"tool {label}: a generator cannot be a tool; return the whole result")
    try:
        visible = dict(inspect.signature(function).parameters)
        every = set(inspect.signature(definition).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {label}: {function!r} has no signature that can be read") from error
    bound = function
    while isinstance(bound, functools.partial):
        visible = {key: value for key, value in visible.items() if key not in bound.keywords}
        bound = bound.func
    rest = None
    for parameter in list(visible.values()):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigurationError(f"tool {label}: parameter {parameter} cannot be given by name")
        if parameter.annotation is parameter.empty:
            hint = "; for a method, make a tool of the bound one: tool(…)(thing.method)"
            raise ConfigurationError(
                f"tool {label}: parameter {parameter.name!r} has no type annotation"
                + (hint if parameter.name in ("self", "cls") else "")
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            rest = visible.pop(parameter.name)
    docstring = inspect.getdoc(definition)
    if docstring is None and definition is not function and not inspect.isroutine(function):
        docstring = type(function).__doc__ if not isinstance(function, functools.partial) else None
    return Shape(
        label,
        docstring,
        definition,
        visible,
        rest,
        frozenset(every - set(visible)),
        inspect.iscoroutinefunction(definition),
        _scope(definition, frame),
    )


def _scope(definition: Any, frame: types.FrameType | None) -> dict[str, Any]:
    """What string annotations may name beside the globals: the locals around the definition, as of now."""
    if frame is None or "<locals>" not in getattr(definition, "__qualname__", ""):
        return {}
    names = dict(frame.f_locals)
    if "__qualname__" in names and frame.f_back is not None:  # a class body, inside a function
        names = {**frame.f_back.f_locals, **names}
    return names


class Signature:
    """What a tool takes. Raises `ConfigurationError` for annotations that no schema can be made of."""

    def __init__(self, shape: Shape, description: str | None) -> None:
        self._shape = shape
        try:
            self._build(description)
        except ConfigurationError:
            raise
        except Exception as error:
            why = str(error).split("\n\nFor further")[0]
            raise ConfigurationError(
                f"tool {shape.name}: its arguments cannot be described: {why}"
            ) from error

    def _build(self, description: str | None) -> None:
        from pydantic import create_model

        shape = self._shape
        hints = _hints(shape)
        self.context_names = tuple(name for name in shape.parameters if _is_context(hints[name]))
        # Neutral field names: a parameter may be called like a method of BaseModel, or begin with "_".
        shown = [name for name in shape.parameters if name not in self.context_names]
        self._names = {f"argument_{number}": name for number, name in enumerate(shown)}
        self._refused = shape.hidden | set(self.context_names)
        fields: dict[str, Any] = {
            key: _field(shape.parameters[name], hints[name]) for key, name in self._names.items()
        }
        base = _base(hints[shape.rest.name] if shape.rest else None)
        self._model: Any = create_model("Arguments", __base__=base, **fields)
        self._has_sets = False
        self._check_defaults(base, fields)
        self.description, told = describe(shape.docstring, shown)
        if description is not None:
            self.description = description
        self.parameters = _untitled(self._model.model_json_schema())
        for name, schema in self.parameters["properties"].items():
            if name in told:
                schema.setdefault("description", told[name])
        written = json.dumps(self.parameters)
        if '"writeOnly": true' in written:
            raise ConfigurationError(
                f"tool {shape.name}: a secret cannot be an argument, for a person sees exactly what runs; "
                "take a reference and resolve it inside the tool"
            )
        self._has_sets = '"uniqueItems": true' in written

    def _check_defaults(self, base: Any, fields: dict[str, Any]) -> None:
        """Defaults are arguments like any other: written down, shown, and read back."""
        from pydantic import create_model

        optional = {
            key: fields[key] for key, info in self._model.model_fields.items() if not info.is_required()
        }
        model: Any = create_model("Defaults", __base__=base, **optional)
        try:
            text = self._write(model.model_validate({}))
            again = self._write(model.model_validate(parse(text)))
        except ValueError as error:
            raise ConfigurationError(
                f"tool {self._shape.name}: a default does not fit its annotation: {self._told(error)}"
            ) from error
        if text != again and '"uniqueItems"' not in json.dumps(model.model_json_schema()):
            raise ConfigurationError(
                f"tool {self._shape.name}: a default changes when read back: {text}, {again}"
            )

    def canonical(self, raw: str | None) -> str:
        """The arguments as they would run. Raises `InvalidArguments`."""
        try:
            given = parse(raw)
            text = self._write(self._read(given))
            if text != raw:
                self._check(given, text, exact=not has_long_number(raw or ""))
        except InvalidArguments as error:
            message = clean(f"Invalid arguments for {self._shape.name}; it was not run. {error}.")
            raise InvalidArguments(message[: MAX_ERROR_CHARACTERS - 1_100] + self._usage[:1_100]) from error
        return text

    def _check(self, given: dict[str, Any], text: str, exact: bool) -> None:
        """What was written reads back as itself, and no number was altered on the way."""
        again = parse(text)
        if not exact and (lost := altered_numbers(given, again)):
            raise InvalidArguments(
                f"the number {str(lost[0])[:60]} cannot be held exactly in the declared type"
            )
        if self._write(self._read(again)) != text:
            raise InvalidArguments(f"the tool's own types do not read back what they wrote: {text}")

    def keywords(self, arguments: str) -> dict[str, Any]:
        """The function's arguments, from canonical JSON. Raises `InvalidArguments`."""
        try:
            # Read plainly: this text came out of `canonical`, which read it strictly.
            given = json.loads(arguments)
        except ValueError as error:
            raise InvalidArguments(f"not canonical JSON: {error}") from error
        instance = self._read(given)
        values = instance.__dict__
        keywords = dict(instance.__pydantic_extra__ or {})
        for key, name in self._names.items():
            keywords[name] = values[key]
        return keywords

    def _read(self, arguments: dict[str, Any]) -> Any:
        try:
            instance = self._model.model_validate(arguments)
        except Exception as error:
            raise InvalidArguments(self._told(error)) from error
        if instance.__pydantic_extra__ and (taken := self._refused & instance.__pydantic_extra__.keys()):
            raise InvalidArguments(f"there is no argument {min(taken)!r}")
        return instance

    def _write(self, instance: Any) -> str:
        try:
            if self._has_sets:
                return encode(_ordered(instance.model_dump(by_alias=True, warnings=False)))
            return encode(instance.model_dump(mode="json", by_alias=True, warnings=False))
        except (ValueError, TypeError) as error:
            raise InvalidArguments(f"the arguments cannot be written as JSON: {error}") from error

    def _told(self, error: Exception) -> str:
        """A validation error in words for the model: what, where, and what would be right."""
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            return error_text(error)
        told = []
        for entry in error.errors(include_url=False, include_context=False)[:_SHOWN_ERRORS]:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in entry["loc"])[1:]
            where = re.sub(r"\bargument_\d+", lambda found: self._names.get(found[0], found[0]), where)
            if entry["type"] == "missing":
                told.append(f"{where}: required, and missing")
            elif entry["type"] == "extra_forbidden":
                told.append(f"{where}: there is no such argument")
            else:
                told.append(f"{where}: {entry['msg']}, not {_brief(entry['input'])}")
        more = error.error_count() - len(told)
        return "; ".join(told) + (f"; and {more} more" if more > 0 else "")

    @functools.cached_property
    def _usage(self) -> str:
        required = self.parameters.get("required", [])
        parts = []
        for name, schema in self.parameters["properties"].items():
            kind = schema.get("type") or "|".join(
                option.get("type", "…") for option in schema.get("anyOf", ({},))
            )
            parts.append(f"{name} ({kind}{', required' if name in required else ''})")
        return f" Arguments it takes: {', '.join(parts) or 'none'}."


def _hints(shape: Shape) -> dict[str, Any]:
    """The resolved annotations, with their Annotated metadata; the result's is of no interest."""
    annotated = [*shape.parameters.values(), *([shape.rest] if shape.rest else [])]
    holder = types.SimpleNamespace(__annotations__={each.name: each.annotation for each in annotated})
    known = getattr(inspect.unwrap(shape.definition), "__globals__", {})
    return typing.get_type_hints(holder, known, dict(shape.scope), include_extras=True)


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _base(rest: Any) -> Any:
    """The root of the argument models: strict about names and numbers, or open where there is `**kwargs`."""
    from pydantic import BaseModel, ConfigDict

    namespace: dict[str, Any] = {
        "__module__": __name__,
        "model_config": ConfigDict(
            extra="forbid" if rest is None else "allow",
            allow_inf_nan=False,
            ser_json_inf_nan="constants",  # so that writing refuses it: the default would make it null
            validate_default=True,
        ),
    }
    if rest is not None:
        namespace["__annotations__"] = {"__pydantic_extra__": dict[str, rest]}
    return type("Arguments", (BaseModel,), namespace)


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
    """A field under a neutral name, known outside by the parameter's."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    alias: dict[str, Any] = dict.fromkeys(
        ("alias", "validation_alias", "serialization_alias"), parameter.name
    )
    default = parameter.default
    if default is parameter.empty:
        return hint, Field(**alias)
    if isinstance(default, FieldInfo):
        return typing.Annotated[hint, default], Field(**alias)
    return hint, Field(default, **alias)


def _untitled(schema: Any, is_map: bool = False) -> Any:
    """The schema without the titles that pydantic makes up; `is_map`: its keys are names, not keywords."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if not is_map and key in ("default", "const", "enum", "examples")
        else _untitled(value, not is_map and key in ("properties", "$defs"))
        for key, value in schema.items()
        if is_map or key != "title"
    }


def _ordered(value: Any) -> Any:
    """A python-mode dump as JSON types, with sets in an order: theirs differs from process to process."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, set | frozenset):
        return sorted((_ordered(part) for part in value), key=encode)
    if isinstance(value, list | tuple):
        return [_ordered(part) for part in value]
    if isinstance(value, dict):
        return {next(iter(to_jsonable_python({key: None}))): _ordered(part) for key, part in value.items()}
    return to_jsonable_python(value, inf_nan_mode="constants")


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:80] + "…"
