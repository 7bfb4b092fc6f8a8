"""The zeros that T.copy puts beyond the end of a tensor, and that an exponential makes ones of."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.diagnose.reader import Part, Reader, Statement, Tile

_CHOICES = {"tirx.if_then_else", "Select"}
_EXPONENTIALS = {"tirx.exp", "tirx.exp2", "tl.__exp", "tl.__exp10", "tirx.exp10"}


def padding(reader: Reader) -> Iterator[tuple]:
    """exp of keys or columns beyond the end, without a mask. T.copy fills what lies beyond a
    tensor with 0; exp(0 - maximum) is not 0, and enters the sum of a softmax."""
    ragged: dict[Tile, set[int]] = {}  # tile -> axes that reach beyond a tensor's end
    masked: set[Tile] = set()
    powers: set[Tile] = set()
    safe = "safe_value_map" in reader.annotated
    for one in reader.statements:
        name = reader.operator(one.node)
        if one.node["type"] == "tirx.BufferStore":
            yield from _store(reader, one, ragged, masked, powers)
        elif name:
            parts = [reader.part(argument) for argument in reader.arguments(one.node)]
            if name == "copy" and parts[0] and parts[1] and not safe:
                _copy(reader, one, parts[0], parts[1], ragged, powers)
            elif name == "fill" and parts[0] and not one.conditions:
                for kept in (masked, powers):
                    kept.discard(parts[0].tile)
                ragged.pop(parts[0].tile, None)
            elif name == "gemm" and all(parts[:3]):
                a, b, c = (part.tile for part in parts[:3])
                flip_a, flip_b = (reader.nodes[n]["data"].get("value") for n in
                                  reader.arguments(one.node)[3:5])
                if (0 if flip_a else 1) in ragged.get(a, ()) and a in powers:
                    yield _said(a, "enters a product", one)
                axes = {0} if (1 if flip_a else 0) in ragged.get(a, ()) else set()
                axes |= {1} if (0 if flip_b else 1) in ragged.get(b, ()) else set()
                if axes and c not in masked:
                    ragged.setdefault(c, set()).update(axes)
            elif name == "reduce" and parts[0]:
                kind = reader.graph.text(reader.nodes[
                    reader.arguments(one.node)[2]]["data"]["value"])
                axis = reader.number(reader.arguments(one.node)[3])
                if kind == "sum" and parts[0].tile in powers and axis in ragged.get(
                        parts[0].tile, ()):
                    yield _said(parts[0].tile, "is summed up", one)


def _said(tile: Tile, how: str, one: Statement) -> tuple:
    return ("unmasked", f"`{tile.name}` reaches beyond the end of its tensor, where it holds exp "
            f"of zeros, and it {how}: the result is wrong. Set what lies beyond to "
            "-T.infinity(\"float32\") before the exponential.", one.place or tile.place,
            "seen on an H200: wrong by 2e-2")


def _copy(reader: Reader, one: Statement, source: Part, target: Part, ragged: dict,
          powers: set) -> None:
    long = [[axis for axis, extent in enumerate(part.extents) if extent != 1]
            for part in (source, target)]
    axes = set()
    for a, b in zip(*long, strict=False):
        if source.tile.scope != "global":
            if a in ragged.get(source.tile, ()):
                axes.add(b)
            continue
        _, high = reader.bounds(source.corner[a], one.loops)
        size, extent = source.tile.shape[a], source.extents[a]
        if None not in (high, size, extent) and high + extent > size:
            axes.add(b)
    if target.tile.scope == "global":
        return
    ragged[target.tile] = axes
    if source.tile in powers:
        powers.add(target.tile)
    else:
        powers.discard(target.tile)


def _store(reader: Reader, one: Statement, ragged: dict, masked: set,
           powers: set) -> Iterator[tuple]:
    data = one.node["data"]
    target = reader.tile(data["buffer"])
    calls = reader.calls(data["value"])
    if target.scope == "global":
        return
    if calls & _CHOICES or one.conditions:
        masked.add(target)
        ragged.pop(target, None)
        return
    places = {index: axis for axis, index in enumerate(reader.items(data["indices"]))}
    axes: set[int] = set()
    for load, _ in reader.loads(data["value"]):
        source = reader.tile(load["data"]["buffer"])
        for axis, index in enumerate(reader.items(load["data"]["indices"])):
            used = reader.variables(index) & places.keys()
            if source.scope == "global":
                _, high = reader.bounds(index, one.loops)
                size = source.shape[axis]
                over = None not in (high, size) and high >= size
            else:
                over = axis in ragged.get(source, ())
            axes.update(places[variable] for variable in used if over)
        if source in powers and source != target:
            powers.add(target)
    if axes:
        ragged[target] = axes
        if calls & _EXPONENTIALS:
            powers.add(target)
    return
    yield
