"""Merges shards that were computed apart: bundles of maps into one, or the units of runs into one run.

Shards are only read, so they may lie where nobody can write, and one that is not finished can go on.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from auditkit.data.bundle_files import HEADER
from auditkit.data.bundles import HeatmapSet
from auditkit.errors import BadInput
from auditkit.runs.explanation.recorded_bundle import RecordedBundle
from auditkit.runs.explanation.shard import MapShard, explained
from auditkit.runs.explanation.waiting import waiting_units
from auditkit.runs.folder.contents import require_readable
from auditkit.runs.folder.names import RUN
from auditkit.runs.folder.sittings import add_logs
from auditkit.runs.folder.store import MissingUnit, Store

_REMEDY = "Give the command of the shards again, with -o {out} and without --shard, to {aim}."


@dataclass(frozen=True)
class Merged:
    """What a folder of merged shards holds."""

    summary: str
    warnings: Sequence[str]  # what was left out, and what is missing
    images_without_maps: Mapping[int, int] = field(default_factory=dict)  # by the number of their shard


def merge(shards: Sequence[Path], out: Path) -> Merged:
    """Merge shards into a folder, all that is sound in them."""
    if out.resolve() in [shard.resolve() for shard in shards]:
        raise BadInput(f"{out} is the folder for all shards and one of them; leave it out of the shards, since what "
                       "it has is kept.")  # fmt: skip
    for shard in shards:
        require_readable(shard)
    with_maps, with_rows = ([shard for shard in shards if (shard / name).exists()] for name in (HEADER, RUN))
    for shard in shards:
        if shard not in [*with_maps, *with_rows]:
            raise BadInput(f"{shard} is neither a run nor a bundle of maps; give the folders that --shard wrote.")
    if with_maps and with_rows:
        raise BadInput(f"{with_maps[0]} has maps and {with_rows[0]} has rows; merge shards of one command.")
    return _merge_maps(sorted(shards, key=_natural), out) if with_maps else _merge_runs(shards, out)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in names count as numbers: 10 comes after 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path)) if part]


def _merge_runs(shards: Sequence[Path], out: Path) -> Merged:
    stores = [Store(shard) for shard in shards]
    settings = stores[0].settings()
    for store in stores[1:]:
        if store.settings() != settings:
            raise BadInput(f"{store.folder} is a shard of another run than {shards[0]}; merge shards of one command.")
    with Store.open(out, settings) as merged:
        for store in stores:
            _add_units(merged, store)
        add_logs(out, shards)
        count = len(merged.keys())
    remedy = _REMEDY.format(out=out, aim="measure what is missing and write the results")
    notes = tuple(chain.from_iterable(store.notes for store in (*stores, merged)))
    return Merged(f"{out} has {count} units of rows. {remedy}", notes)


def _add_units(merged: Store, shard: Store) -> None:
    """Add the units that are missing; the shard's notes name those that are damaged."""
    for key in shard.keys():  # noqa: SIM118 - not a dict
        if merged.has(key):
            continue
        try:
            merged.write(key, shard.read(key))
        except MissingUnit:
            continue


# What all shards of a command have in common, unless they have nothing yet, and what is said of others.
_COMMON: dict[str, Callable[[MapShard], object]] = {
    "has maps of another model or method": lambda shard: explained(shard.maps.header),
    "hides pixels behind another gray or other pictures": lambda shard: shard.record.infill,
    "stores its maps at another resolution": lambda shard: len(shard.maps) and (shard.maps.header.upsampling,),
    "has maps of other labels": lambda shard: shard.shares and shard.shares.labels,
    "was cut from other images, or into another number of shards,": lambda shard: shard.shares and shard.shares.images,
}  # fmt: skip


def _check_common(shards: Sequence[MapShard]) -> None:
    for difference, fact in _COMMON.items():
        known = [shard for shard in shards if fact(shard)]
        for shard in known[1:]:
            if fact(shard) != fact(known[0]):
                raise BadInput(f"{shard.maps.path} {difference} than {known[0].maps.path}; merge shards of one "
                               "command.")  # fmt: skip


def _merge_maps(paths: Sequence[Path], out: Path) -> Merged:
    present = [out] if (out / HEADER).exists() else []
    shards, warnings = list[MapShard](), list[str]()
    for path in (*present, *paths):
        usable, unusable = _shards(path)
        shards += usable
        warnings += unusable
    _check_common(shards)
    with RecordedBundle.like(shards[0].maps.header, out) as merged:
        warnings += filter(None, (shard.add_to(merged) for shard in shards if shard.maps.path != out))
        if not (out / HEADER).exists():
            raise BadInput("; ".join(["the shards have no maps that can be used", *warnings]) + ".")
        add_logs(out, paths)
        maps = merged.checked()
    lacking, missing = _lacking(shards, maps)
    warnings += [missing] if missing else []
    remedy = _REMEDY.format(out=out, aim="make the maps that are missing")
    summary = f"{out} has {len(maps)} maps of {len(maps.labels)} images."
    return Merged(f"{summary} {remedy}" if warnings else summary, warnings, lacking)


def _shards(path: Path) -> tuple[list[MapShard], list[str]]:
    """A shard with the units that wait in it, and a warning of each unit that cannot be used."""
    shard = MapShard.read(path)
    units = waiting_units(path, shard.maps.header, empty=not len(shard.maps))
    if units:
        shard = MapShard.read(path)  # once more: a process that still works there may have moved some to it
    warnings = [f"maps of {unit} were left out: they cannot be read, or are not those of {path}"
                for unit, read in units.items() if read is None and unit.exists()]  # fmt: skip
    return [shard, *filter(None, units.values())], warnings


def _lacking(shards: Sequence[MapShard], maps: HeatmapSet) -> tuple[Mapping[int, int], str]:
    """How many images of each shard have no map, and the same in words."""
    for shard in shards:
        if shard.shares is not None:
            lacking = shard.shares.lacking(maps.labels)
            return lacking, shard.shares.text(lacking) if lacking else ""
    return {}, ""
