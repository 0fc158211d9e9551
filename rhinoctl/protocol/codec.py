"""The one codec: frozen dataclasses to JSON bytes and back, checked against their annotations.

No pickle crosses a process boundary. A value that does not fit its annotation, an unknown kind or
an unknown field is a `CodecError`, never a guess.
"""

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any


class CodecError(ValueError):
    """Bytes or values that are not what the annotations promise."""


Convert = Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """A JSON-able image of dataclasses, named tuples, enums, mappings and sequences."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list | frozenset):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if is_dataclass(value):
        return {f: to_json(getattr(value, f)) for f in _field_names(type(value))}
    raise CodecError(f"a {type(value).__name__} cannot be encoded")


def from_json(kind: Any, image: Any) -> Any:
    """The value of annotation `kind` that `image` describes; raises CodecError."""
    return _decoder(kind)(image)


def dumps(value: Any) -> bytes:
    """JSON bytes of a value."""
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False).encode()


def loads(kind: Any, data: bytes | bytearray | memoryview) -> Any:
    """The value of annotation `kind` in JSON bytes; raises CodecError."""
    return from_json(kind, _parse(data))


def loads_image(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The JSON object in `data`, not yet decoded; raises CodecError."""
    image: dict[str, Any] = _expect(dict, _parse(data))
    return image


def _parse(data: bytes | bytearray | memoryview) -> Any:
    try:
        return json.loads(bytes(data))
    except ValueError as fault:
        raise CodecError(f"not JSON: {fault}") from fault


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _decoder(kind: Any) -> Convert:
    if hasattr(kind, "__supertype__"):
        return _decoder(kind.__supertype__)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind))
    if origin is frozenset:
        item = _decoder(typing.get_args(kind)[0])
        return lambda image: frozenset(item(each) for each in _expect(list, image))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(*typing.get_args(kind))
    if isinstance(kind, type):
        return _class_decoder(kind)
    raise CodecError(f"no decoder for {kind}")


def _class_decoder(kind: type) -> Convert:
    if issubclass(kind, Enum):
        return lambda image: _enum(kind, image)
    if is_dataclass(kind):
        return _dataclass_decoder(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return _named_tuple_decoder(kind, [_decoder(hints[name]) for name in kind._fields])
    if kind is float:
        return lambda image: float(_expect((int, float), image))
    if kind in (int, str, bool):
        return lambda image: _expect(kind, image)
    raise CodecError(f"no decoder for {kind}")


def _expect(kind: Any, image: Any) -> Any:
    if not isinstance(image, kind) or (kind is int and isinstance(image, bool)):
        raise CodecError(f"expected {kind}, got {image!r:.80}")
    return image


def _enum(kind: type[Enum], image: Any) -> Enum:
    try:
        return kind(image)
    except ValueError as fault:
        raise CodecError(f"{image!r:.80} is no {kind.__name__}") from fault


def _optional_decoder(kind: Any) -> Convert:
    options = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if len(options) != 1:
        raise CodecError(f"only unions with None can be decoded, not {kind}")
    inner = _decoder(options[0])
    return lambda image: None if image is None else inner(image)


def _tuple_decoder(args: tuple[Any, ...]) -> Convert:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0])
        return lambda image: tuple(item(each) for each in _expect(list, image))
    return _named_tuple_decoder(lambda *items: tuple(items), [_decoder(arg) for arg in args])


def _named_tuple_decoder(build: Callable[..., Any], items: list[Convert]) -> Convert:
    def decode(image: Any) -> Any:
        if len(_expect(list, image)) != len(items):
            raise CodecError(f"expected {len(items)} items, got {len(image)}")
        return build(*(item(each) for item, each in zip(items, image, strict=True)))

    return decode


def _mapping_decoder(key_kind: Any, value_kind: Any) -> Convert:
    base = getattr(key_kind, "__supertype__", key_kind)
    value = _decoder(value_kind)

    def decode(image: Any) -> Any:
        try:
            return {base(key): value(item) for key, item in _expect(dict, image).items()}
        except CodecError:
            raise
        except ValueError as fault:
            raise CodecError(f"bad key: {fault}") from fault

    return decode


def _dataclass_decoder(kind: type) -> Convert:
    hints = typing.get_type_hints(kind)
    decoders = {name: _decoder(hints[name]) for name in _field_names(kind)}

    def decode(image: Any) -> Any:
        unknown = _expect(dict, image).keys() - decoders.keys()
        if unknown:
            raise CodecError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
        values = {name: decoders[name](item) for name, item in image.items()}
        try:
            return kind(**values)
        except (TypeError, ValueError) as fault:
            raise CodecError(f"{kind.__name__}: {fault}") from fault

    return decode
