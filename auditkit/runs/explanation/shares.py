"""The images of the shards of a command. Each shard names those of all, so that one that never comes is noticed."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from auditkit.errors import BadInput
from auditkit.records import from_json, parse_object, to_object
from auditkit.regular_files import read_regular, reason

SHARES = "shares.json"  # in the bundle of a shard
_SCHEMA_VERSION = 1
_MOST_BYTES = 2**28  # millions of names


@dataclass(frozen=True)
class Shares:
    """The images of each shard, and which of their labels are explained."""

    labels: str  # the rule
    images: tuple[tuple[str, ...], ...]
    schema_version: int = _SCHEMA_VERSION

    @classmethod
    def of(cls, bundle: Path) -> Self | None:
        """What the bundle of a shard says; None where it says nothing, such as one of all images."""
        path = bundle / SHARES
        try:
            values = parse_object(read_regular(path, _MOST_BYTES), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {reason(error)}.") from None
        if values.get("schema_version") != _SCHEMA_VERSION:
            version = values.get("schema_version")
            raise BadInput(f"{path} has schema_version {version!r}; this auditkit reads {_SCHEMA_VERSION}.")
        return from_json(cls, values, path)

    def encoded(self) -> bytes:
        """The content of the file."""
        return json.dumps(to_object(self)).encode() + b"\n"

    def lacking(self, images: Collection[str]) -> dict[int, int]:
        """How many images of each shard are not among these, by the shard's number; without those that lack none."""
        counts = {number: len(set(share).difference(images)) for number, share in enumerate(self.images, start=1)}
        return {number: count for number, count in counts.items() if count}

    def text(self, lacking: Mapping[int, int]) -> str:
        """How many images lack maps, in words."""
        total, shares = sum(map(len, self.images)), list[str]()
        for number, count in lacking.items():
            shares.append(f"{'all' if count == len(self.images[number - 1]) else 'some'} of shard {number}")
        return f"images without maps: {sum(lacking.values())} of {total} ({', '.join(shares)})"
