"""Merges shards that were computed apart: bundles of maps into one, or the units of runs into one run."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from auditkit.data.bundle_files import HEADER, read_header
from auditkit.data.bundles import Bundle, open_bundle
from auditkit.errors import BadInput
from auditkit.runs.explanation.record import Record, RecordedBundle
from auditkit.runs.folder.store import RUN, Store


def merge(shards: Sequence[Path], out: Path) -> str:
    """Merge shards into a folder; what it holds now, in a sentence."""
    if all((shard / HEADER).exists() for shard in shards):
        return _merge_maps(sorted(shards, key=_natural), out)
    for shard in shards:
        if not (shard / RUN).exists():
            raise BadInput(f"{shard} is neither a run nor a bundle of maps; give the folders that --shard wrote.")
    return _merge_runs(shards, out)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in names count as numbers: 10 comes after 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path)) if part]


def _merge_runs(shards: Sequence[Path], out: Path) -> str:
    stores = [Store(shard) for shard in shards]
    settings = stores[0].settings()
    for store in stores[1:]:
        if store.settings() != settings:
            raise BadInput(f"{store.folder} is a shard of another run than {shards[0]}; merge shards of one command.")
    with Store.open(out, settings) as merged:
        for store in stores:
            for key in store.keys():  # noqa: SIM118 - not a dict
                if not merged.has(key):
                    merged.write(key, store.read(key))
        count = len(merged.keys())
    return (f"{out} has {count} units of rows. Give the command of the shards again, with -o {out} and without "
            "--shard, to measure what is missing and to write the results.")  # fmt: skip


def _merge_maps(shards: Sequence[Path], out: Path) -> str:
    header = read_header(shards[0])
    for shard in shards[1:]:
        other = read_header(shard)
        if (other.model, other.method, other.frame) != (header.model, header.method, header.frame):
            raise BadInput(
                f"{shard} has maps of another model or method than {shards[0]}; merge shards of one command."
            )
    with RecordedBundle(Bundle(out, model=header.model, method=header.method, frame=header.frame)) as merged:
        for shard in shards:
            with RecordedBundle(Bundle(shard, model=header.model, method=header.method, frame=header.frame)) as bundle:
                _add(merged, bundle.record, shard)
        maps = merged.checked()
    return f"{out} has {len(maps)} maps of {len(maps.labels)} images."


def _add(merged: RecordedBundle, record: Record, shard: Path) -> None:
    """Add the maps that are missing, with their record."""
    maps = open_bundle(shard)
    read, entries = maps.stored_reader(), {(entry.image, entry.label): entry for entry in maps.entries}
    if merged.record.infill not in ("", record.infill):
        raise BadInput(f"{shard} hides pixels behind another gray or other pictures; merge shards of one command.")
    for part in record.parts:
        new: dict[str, dict[str, str]] = {}
        for image, label in part.pairs():
            if label not in merged.labels_of(image):
                new.setdefault(image, {})[str(label)] = part.maps[image][str(label)]
        added = replace(part, maps=new, images={image: part.images[image] for image in new})
        if new:
            merged.add_part(added, [read(entries[pair])[0] for pair in added.pairs()], maps.header.upsampling)
