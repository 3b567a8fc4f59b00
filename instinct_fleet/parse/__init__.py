"""Tool output of any ROCm release -> model. See :mod:`instinct_fleet.parse.base` for what a parser returns."""

from instinct_fleet.parse.detect import read

__all__ = ["read"]
