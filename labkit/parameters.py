"""Parameters for the lessons from a file, as a teacher sets them for a class.

The file is JSON: of each lesson, by number or name, the parameters that differ from the lesson's
own; "all" stands for every lesson that has such a parameter.

    {"all": {"size_gpu": 2048}, "06": {"heads_gpu": 8, "S_gpu": 1024}}

A lesson's parameters are what its cell tagged `parameters` assigns. Nothing in a file is executed.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit import lessons
from labkit.errors import BadArgument, LabError

_LARGEST = 1_000_000  # bytes of a file
_OPTIONS = {"device": "--device", "gpu": "--gpu", "quick": "--quick"}
_EXAMPLE = '{"all": {"size_gpu": 2048}, "06": {"S_gpu": 1024}}'


def read(path: str | Path) -> dict[str, Any]:
    """The file's content, not yet checked against lessons. Raises BadArgument, naming the file."""
    path = Path(path)
    try:
        if not path.is_file():
            raise BadArgument(f"{path} is not a file; give --parameters a JSON file, as in "
                              f"{_EXAMPLE}.")
        if path.stat().st_size > _LARGEST:
            raise BadArgument(f"{path} is larger than {_LARGEST // 1_000_000} MB; give parameters "
                              "alone, not data.")
        text = path.read_bytes().decode("utf-8-sig")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except BadArgument:
        raise
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise BadArgument(f"{path} cannot be read as JSON ({why}); correct it, as in "
                          f"{_EXAMPLE}.") from error
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise BadArgument(f"{path} does not hold an object of objects; give it the lessons and "
                          f"their parameters, as in {_EXAMPLE}.")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_short(twice)} stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def check(given: dict[str, Any], chosen: Sequence[lessons.Lesson], folder: Path,
          where: str) -> dict[str, dict[str, Any]]:
    """The parameters for each of the `chosen` lessons, by stem, where there are any.

    given: as `read` returns it; where: its name, for messages. What is for lessons that were not
    chosen is left out. Raises BadArgument for a lesson or parameter that does not exist, and for
    a value of another type than the lesson's own.
    """
    stems = {lesson.stem for lesson in chosen}
    known = {lesson.stem: found for lesson in chosen if (found := _defaults(lesson)) is not None}
    result: dict[str, dict[str, Any]] = {}
    for name, value in given.get("all", {}).items():
        fits = [stem for stem in known if name in known[stem]]
        if not fits or name in _OPTIONS:
            raise _unknown(where, "no lesson of this run", name, sorted(
                {key for defaults in known.values() for key in defaults}))
        for stem in fits:
            result.setdefault(stem, {})[name] = _fit(where, stem, name, value, known[stem][name])
    seen: set[str] = set()
    for key, entries in given.items():
        if key == "all":
            continue
        try:
            stem = lessons.find(key, folder).stem
        except (LabError, ValueError, OSError) as error:
            raise BadArgument(f"{where} names the lesson {_short(key)}, which does not exist or "
                              "fits several; `labkit lessons` lists them.") from error
        if stem in seen:
            raise BadArgument(f"{where} names lesson {stem} twice; put its parameters together.")
        seen.add(stem)
        if stem not in stems or stem not in known:
            continue  # a lesson that cannot be read fails by itself, and says why
        for name, value in entries.items():
            if name not in known[stem] or name in _OPTIONS:
                raise _unknown(where, f"lesson {stem} does not", name, list(known[stem]))
            result.setdefault(stem, {})[name] = _fit(where, stem, name, value, known[stem][name])
    return {stem: result[stem] for stem in sorted(result)}


def _unknown(where: str, who: str, name: str, known: list[str]) -> BadArgument:
    if name in _OPTIONS:
        return BadArgument(f"{where} sets {name!r}, which holds for a whole run; leave it out, and "
                           f"use the option {_OPTIONS[name]}.")
    who = f"{who} has" if who.startswith("no ") else f"{who} have"
    own = [key for key in known if key not in _OPTIONS]
    return BadArgument(f"{where} sets {_short(name)}, which {who}; "
                       f"known are: {', '.join(own) or 'none'}.")


def _defaults(lesson: lessons.Lesson) -> dict[str, Any] | None:
    """What the lesson's parameters cell assigns; None if the lesson cannot be read."""
    try:
        cell = next(cell for cell in lesson.notebook.cells if cell.cell_type == "code"
                    and "parameters" in cell.metadata.get("tags", []))
        tree = ast.parse(cell.source)
    except (LabError, StopIteration, SyntaxError, ValueError):
        return None
    found: dict[str, Any] = {}
    for line in tree.body:
        targets = line.targets if isinstance(line, ast.Assign) else (
            [line.target] if isinstance(line, ast.AnnAssign) and line.value else [])
        for target in targets:
            if isinstance(target, ast.Name):
                try:
                    found[target.id] = ast.literal_eval(line.value)
                except (ValueError, TypeError, SyntaxError):
                    continue  # computed, so not for a file to set
    return found


def _fit(where: str, stem: str, name: str, value: Any, default: Any) -> Any:
    """`value` as the lesson takes it. Raises BadArgument for another type than `default`'s."""
    if type(default) is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    elif not _same_kind(value, default):
        raise BadArgument(f"{where} gives {_short(value)} to {name} of lesson {stem}, where a "
                          f"value of type {type(default).__name__} belongs, as in "
                          f"{_short(default)}.")
    return value


def _same_kind(value: Any, default: Any) -> bool:
    if type(value) is not (list if type(default) is tuple else type(default)):
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)  # half a character
    if isinstance(value, list):
        return all(any(_same_kind(one, own) for own in default) for one in value)
    return isinstance(value, (bool, int))


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
