"""The one codec: frozen dataclasses to JSON bytes and back, checked against their annotations.

No pickle crosses a process boundary. A value that does not fit its annotation, an unknown kind or
an unknown field is a `CodecError`, never a guess.

With a `version` of the protocol, a value is written as that version has it, and read as one that
was; without, it is written in our own, and read in any that we read (`protocol.versions`).
"""

import json
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from rhinoctl.protocol.versions import is_read, is_written, newer_values, value_for


class CodecError(ValueError):
    """Bytes or values that are not what the annotations promise."""


Convert = Callable[[Any], Any]


def to_json(value: Any, *, version: int | None = None) -> Any:
    """A JSON-able image of dataclasses, named tuples, enums, mappings and sequences."""
    encode = _encoder_of(version)(type(value))
    return value if encode is None else encode(value)


def from_json(kind: Any, image: Any, *, version: int | None = None) -> Any:
    """The value of annotation `kind` that `image` describes; raises CodecError."""
    return _decoder(kind, version)(image)


def dumps(value: Any, *, version: int | None = None) -> bytes:
    """JSON bytes of a value; raises CodecError."""
    try:
        text = _json(version).encode(value)
    except (TypeError, ValueError) as fault:
        raise CodecError(str(fault)) from fault
    return text.encode()


def loads(kind: Any, data: bytes | bytearray | memoryview, *, version: int | None = None) -> Any:
    """The value of annotation `kind` in JSON bytes; raises CodecError."""
    return from_json(kind, _parse(data), version=version)


def dumps_checked(value: Any) -> bytes:
    """As `dumps`, with a checksum: for what lies on a disk that nothing else checks."""
    data = dumps(value)
    return data + _checksum(data)


def loads_checked(kind: Any, data: bytes | bytearray | memoryview) -> Any:
    """The value of what `dumps_checked` made, or `dumps`, whose end is that of JSON."""
    return loads(kind, _content(bytes(data)))


def check(data: bytes | bytearray | memoryview) -> None:
    """Raise CodecError for what `loads_checked` would refuse whatever it was to be."""
    _parse(_content(bytes(data)))


def _content(data: bytes) -> bytes:
    """What `dumps` made, if its checksum is right or it has none."""
    if data[-_SUM_BYTES : 1 - _SUM_BYTES] != b"#":
        return data
    content, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if checksum != _checksum(content):
        raise CodecError("its checksum is another")
    return content


def _checksum(data: bytes) -> bytes:
    return b"#%08x" % zlib.crc32(data)


_SUM_BYTES = len(_checksum(b""))


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
def _json(version: int | None) -> json.JSONEncoder:
    image = partial(to_json, version=version)
    return json.JSONEncoder(default=image, separators=(",", ":"), allow_nan=False)


# Encoders are found by the value's own type, not by the annotation: what is wrong for its field is
# written as it is, and refused by the reader. None stands for "as it is", which saves most calls.
# Each version has encoders of its own, so that what it lacks is left out at no cost for the others.


@cache
def _encoder_of(version: int | None) -> Callable[[type], Convert | None]:
    def new_encoder(kind: type) -> Convert | None:
        if issubclass(kind, Enum):
            return {member: value_for(member, version).value for member in kind}.__getitem__
        if kind is type(None) or issubclass(kind, bool | int | float | str):
            return None
        if issubclass(kind, tuple | list):
            return encode_items
        if issubclass(kind, frozenset):
            return encode_set
        if issubclass(kind, Mapping):
            return encode_mapping
        if is_dataclass(kind):
            written = (field.name for field in fields(kind) if is_written(field, version))
            return dataclass_encoder(tuple(written))
        raise CodecError(f"a {kind.__name__} cannot be encoded")

    encoder: Callable[[type], Convert | None] = cache(new_encoder)

    def encode_items(items: Any) -> list[Any]:
        image = []
        for item in items:
            encode = encoder(type(item))
            image.append(item if encode is None else encode(item))
        return image

    def encode_set(items: Any) -> list[Any]:
        """In order: equal sets that were made in other ways differ in how they are iterated."""
        return sorted(encode_items(items))

    def encode_mapping(mapping: Mapping[Any, Any]) -> dict[str, Any]:
        image = {}
        for key, item in mapping.items():
            encode = encoder(type(item))
            image[str(key)] = item if encode is None else encode(item)
        return image

    def dataclass_encoder(names: tuple[str, ...]) -> Convert:
        def encode_fields(value: Any) -> dict[str, Any]:
            image = {}
            for name in names:
                item = getattr(value, name)
                encode = encoder(type(item))
                image[name] = item if encode is None else encode(item)
            return image

        return encode_fields

    return encoder


@cache
def _decoder(kind: Any, version: int | None) -> Convert:
    if hasattr(kind, "__supertype__"):
        return _decoder(kind.__supertype__, version)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional_decoder(kind, version)
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind), version)
    if origin is frozenset:
        item = _decoder(typing.get_args(kind)[0], version)
        return lambda image: frozenset(item(each) for each in _expect(list, image))
    if origin is not None and issubclass(origin, Mapping):
        key, value = typing.get_args(kind)
        return _mapping_decoder(key, value, version)
    if isinstance(kind, type):
        return _class_decoder(kind, version)
    raise CodecError(f"no decoder for {kind}")


def _class_decoder(kind: type, version: int | None) -> Convert:
    if issubclass(kind, Enum):
        return _enum_decoder(kind, version)
    if is_dataclass(kind):
        return _dataclass_decoder(kind, version)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        items = [_decoder(hints[name], version) for name in kind._fields]
        return _named_tuple_decoder(kind, items)
    if kind is float:
        return lambda image: float(_expect((int, float), image))
    if kind in (int, str, bool):
        return lambda image: image if type(image) is kind else _expect(kind, image)
    raise CodecError(f"no decoder for {kind}")


def _expect(kind: Any, image: Any) -> Any:
    if not isinstance(image, kind) or (kind is int and isinstance(image, bool)):
        raise CodecError(f"expected {kind}, got {image!r:.80}")
    return image


def _enum_decoder(kind: type[Enum], version: int | None) -> Convert:
    newer = newer_values(kind)
    members = {
        member.value: member
        for member in kind
        if version is None or newer.get(member.name, (0, ""))[0] <= version
    }

    def decode(image: Any) -> Any:
        try:
            return members[image]
        except (KeyError, TypeError) as fault:
            raise CodecError(f"{image!r:.80} is no {kind.__name__}") from fault

    return decode


def _optional_decoder(kind: Any, version: int | None) -> Convert:
    options = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if len(options) != 1:
        raise CodecError(f"only unions with None can be decoded, not {kind}")
    inner = _decoder(options[0], version)
    return lambda image: None if image is None else inner(image)


def _tuple_decoder(args: tuple[Any, ...], version: int | None) -> Convert:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0], version)
        return lambda image: tuple(item(each) for each in _expect(list, image))
    parts = [_decoder(arg, version) for arg in args]
    return _named_tuple_decoder(lambda *items: tuple(items), parts)


def _named_tuple_decoder(build: Callable[..., Any], items: list[Convert]) -> Convert:
    def decode(image: Any) -> Any:
        if len(_expect(list, image)) != len(items):
            raise CodecError(f"expected {len(items)} items, got {len(image)}")
        return build(*(item(each) for item, each in zip(items, image, strict=True)))

    return decode


def _mapping_decoder(key_kind: Any, value_kind: Any, version: int | None) -> Convert:
    base = getattr(key_kind, "__supertype__", key_kind)
    value = _decoder(value_kind, version)

    def decode(image: Any) -> Any:
        try:
            return {base(key): value(item) for key, item in _expect(dict, image).items()}
        except CodecError:
            raise
        except ValueError as fault:
            raise CodecError(f"bad key: {fault}") from fault

    return decode


def _dataclass_decoder(kind: type, version: int | None) -> Convert:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind) if is_read(field, version)]
    decoders = {name: _decoder(hints[name], version) for name in names}

    def decode(image: Any) -> Any:
        if not _expect(dict, image).keys() <= decoders.keys():
            unknown = sorted(image.keys() - decoders.keys())
            raise CodecError(f"{kind.__name__} has no field {unknown[0]!r}")
        values = {name: decoders[name](item) for name, item in image.items()}
        try:
            return kind(**values)
        except (TypeError, ValueError) as fault:
            raise CodecError(f"{kind.__name__}: {fault}") from fault

    return decode
