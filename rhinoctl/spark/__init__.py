"""The Spark side: the only package that imports pyspark.

Executors and readers import this package in every Python process, so `Rhino` and `Result` are
loaded when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhinoctl.spark.result import Result
    from rhinoctl.spark.rhino import Rhino

__all__ = ["Result", "Rhino"]

_HOMES = {"Result": "rhinoctl.spark.result", "Rhino": "rhinoctl.spark.rhino"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
