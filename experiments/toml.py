"""TOML files of settings: read with one clear error, and written."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossip.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: Path) -> dict[str, Any]:
    """The file's tables and values. Raises `UsageError`: it cannot be read, or is not TOML."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None


def parse_value(text: str) -> Any:
    """``0.1``, ``true`` or ``"a"`` as TOML reads it; anything else is the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def dumps(values: Mapping[str, Any]) -> str:
    """Lines ``key = value``; strings, numbers, booleans, and lists of them."""
    return "".join(f"{key} = {dump(value)}\n" for key, value in values.items())


def dump(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(dump, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
