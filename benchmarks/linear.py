"""The linear theorem of the paper (Gupta et al. 2022, Section 5 and its appendix): what it promises, as d grows.

    python -m benchmarks.linear --plot benchmarks/results/linear.svg > benchmarks/results/linear.json

**The theorem.** A linear classifier sign(w·x) is asked about an input x of d coordinates and label y = ±1 with margin
gamma = y w·x > 0. A map is an interval of L coordinates; all others are set to 0. It certifies label a, g(x, a, map) =
1, when a sum(w_i x_i over the interval) > 0. After a random shuffling of the coordinates, for any L1 =
Omega(log(1/delta) / gamma²) and L2 = Omega(log(d/delta) / gamma²):

    completeness  with probability 1 - delta there is an interval of length L1 that certifies y;
    soundness     with probability 1 - delta no interval of length L2 certifies -y.

L1 and L2 are lengths, not norms. Assumed: |w| = |x| = 1 and, in the appendix only, |w_i|, |x_i| <= C / sqrt(d) with C =
10 or any other constant. Constants are left open. The proof is a Chernoff bound on z_i = d y w_i x_i, which have mean
gamma, drawn without replacement; here it is filled in with Hoeffding's bound, or Bernstein's where that is smaller:

    L1 = k ln(1/delta), L2 = k ln(d/delta), k = min( (max z - min z)² / (2 gamma²),
                                                     2 (variance of z + gamma (gamma - min z) / 3) / gamma² );
    from C alone Hoeffding gives k = 2 C⁴ / gamma², which for C = 10 is 20,000 / gamma².

**What is measured**, on inputs that are fixed but for their order, over many shuffles, delta = 0.05:

    fixed  one interval chosen beforehand (the first) certifies y: what the proof of completeness shows
    some   some interval certifies y: what its statement says
    sound  no interval certifies -y

With f(x, a) = 1 for y and 0 for -y, and g in the place of the AUC, these are the paper's alpha of y and beta of -y;
alpha of -y and beta of y are always 1, so they are its worst completeness and worst soundness too. `needed` is the
length from which on the share is at least 1 - delta, and its ends are those of the shares' intervals. Lengths are odd,
so that no sum of ±1 is nothing. Three kinds of input, each with exactly its margin, one draw for each d:

    flat      |w_i| = |x_i| = 1/sqrt(d), z = ±1: C = 1, and the share `fixed` is a hypergeometric sum (`fixed_exact`)
    gaussian  normal coordinates, x = gamma w + sqrt(1 - gamma²) u with u across w: C = 10 holds at these d
    spiky     one coordinate in 64 carries all, |w_i| = |x_i| = 8/sqrt(d), z = ±64: the most variance C = 8 admits

and two outside the theorem: `worst_order`, soundness at L2 of coordinates sorted by z instead of shuffled (as good as
no TV limit: those most for -y are an interval); and `lone`, one unbounded coordinate against all others, at flat's L2.

**Where the claim and the measurement differ** (figures in results/linear.json):

    - `some` needs no L1: where L divides d, disjoint intervals add up to gamma > 0 and one of them certifies y for
      certain, down to L = 1. L1 is what an interval chosen beforehand needs.
    - The statement leaves out the bound on the coordinates, and without it soundness is lost (`lone`).
    - Soundness at L1 is not claimed, and goes to 0 as d grows.
    - The lengths needed are 0.23 to 0.63 of L2: tail bounds and a union over overlapping intervals are generous. They
      go with the variance of z (at most C²), not with C⁴; over log(d gamma² / variance) all inputs lie near one curve.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.metrics.statistics import Interval, share_interval
from auditkit.report.svg import Axis
from benchmarks.drawing import MARKS, Chart, page
from benchmarks.reporting import origin

Chance = np.random.Generator
DELTA = 0.05
SPIKE = 64  # coordinates for each that carries something
TRIED = 32  # lengths between 1/6 and 3/4 of L2, or of d, at which soundness is measured
AT_ONCE = 1 << 17  # coordinates shuffled at once
Input = tuple[Array, Array]  # w and x, of label 1
Shares = dict[int, Interval]  # by length
Row = dict[str, Any]


def shares_of_margin(w: Array, x: Array) -> Array:
    """z, what each coordinate adds to the margin, times d; rounded, so that sums that are nothing are 0."""
    return np.asarray(np.round(len(w) * w * x, 9))


def split(z: Array) -> Input:
    """The input with |w_i| = |x_i| and these z; of unit length when the mean of |z| is 1."""
    w = np.sqrt(np.abs(z) / len(z))
    return w, np.sign(z) * w


def flat(d: int, margin: float, _: Chance) -> Input:
    """All coordinates alike, but for the sign."""
    return split(np.where(np.arange(d) < negatives(d, margin), -1.0, 1.0))


def spiky(d: int, margin: float, _: Chance) -> Input:
    """One coordinate in SPIKE carries something."""
    z = np.zeros(d)
    z[: d // SPIKE] = np.where(np.arange(d // SPIKE) < negatives(d // SPIKE, margin), -SPIKE, SPIKE)
    return split(z)


def gaussian(d: int, margin: float, chance: Chance) -> Input:
    """Normal coordinates."""
    w, u = chance.standard_normal((2, d))
    w /= np.linalg.norm(w)
    u -= (u @ w) * w
    return w, margin * w + math.sqrt(1 - margin**2) * u / np.linalg.norm(u)


def lone(d: int, margin: float, _: Chance) -> Input:
    """One coordinate outweighs all others, which speak against the label."""
    z = np.full(d, -d * (1 - margin) / 2 / (d - 1))
    z[0] = d * (1 + margin) / 2
    return split(z)


KINDS: dict[str, Callable[[int, float, Chance], Input]] = {"flat": flat, "gaussian": gaussian, "spiky": spiky}
CASES = (("flat", 1 / 2), ("flat", 1 / 4), ("flat", 1 / 8), ("gaussian", 1 / 4), ("spiky", 1 / 2))
CHIEF = ("flat", 1 / 4)  # the one that is drawn in full


def negatives(d: int, margin: float) -> int:
    """How many of d signs are negative."""
    return round(d * (1 - margin) / 2)


def odd(length: float) -> int:
    """The next odd whole number."""
    return math.ceil(length) | 1


def constant(z: Array) -> float:
    """k of the lengths L1 = k ln(1/delta) and L2 = k ln(d/delta), by Hoeffding or by Bernstein."""
    margin = float(z.mean())
    hoeffding = float(np.ptp(z)) ** 2 / 2
    bernstein = 2 * (float(z.var()) + margin * (margin - float(z.min())) / 3)
    return min(hoeffding, bernstein) / margin**2


def claimed(z: Array, delta: float = DELTA) -> tuple[int, int]:
    """L1 and L2."""
    k = constant(z)
    return odd(k * math.log(1 / delta)), odd(k * math.log(len(z) / delta))


def fixed_exact(d: int, margin: float, length: int) -> float:
    """Chance that a given interval of a flat input certifies y: fewer than half its signs are negative."""
    return float(hypergeom.cdf((length - 1) // 2, d, negatives(d, margin), length))


def shuffled(z: Array, shuffles: int, chance: Chance) -> Iterable[Array]:
    """Sums [rows, d + 1] over the first 0..d coordinates after random shuffles, some rows at a time."""
    most = max(1, AT_ONCE // len(z))
    for done in range(0, shuffles, most):
        rows = np.tile(z, (min(most, shuffles - done), 1))
        chance.permuted(rows, axis=1, out=rows)
        yield np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))


def windows(sums: Array, length: int) -> Array:
    """Sums over every interval of a length."""
    return np.asarray(sums[:, length:] - sums[:, :-length])


def completeness_of(sums: Array, lengths: Sequence[int], *, fixed: bool) -> Array:
    """alpha of label y [rows, lengths]: with the first interval only, or with whichever certifies it."""
    best = [sums[:, n] if fixed else windows(sums, n).max(axis=1) for n in lengths]
    return completeness(np.stack(best, axis=1) > 0, 1.0, eps1=0.0)


def soundness_of(sums: Array, lengths: Sequence[int]) -> Array:
    """beta of label -y [rows, lengths], with whichever interval certifies it."""
    return soundness(np.stack([windows(sums, n).min(axis=1) for n in lengths], axis=1) < 0, 0.0, eps2=0.0)


def shares(lengths: Sequence[int], scores: Iterable[Array]) -> Shares:
    """Share of the shuffles in which it held, by length."""
    columns = np.concatenate([*scores]).T
    return {n: share_interval(int(column.sum()), len(column)) for n, column in zip(lengths, columns, strict=True)}


def needed(found: Shares) -> dict[str, int | None]:
    """The length from which on the share is at least 1 - delta; None where no length tried is short of it, or all.

    Shares of fewer than five shuffles have no interval, and so the length has none.
    """
    lengths = sorted(found)

    def first(end: str) -> int | None:
        ends = [getattr(found[n], end) for n in lengths]
        short = [place for place, share in enumerate(ends) if share is not None and share < 1 - DELTA]
        return lengths[short[-1] + 1] if short and short[-1] + 1 < len(lengths) else None

    return {"value": first("value"), "low": first("high"), "high": first("low")}


def told(found: Interval) -> Row:
    """A share as it is written down, and whether it shows the theorem's 1 - delta, refutes it or leaves it open."""
    answer = "open"
    if found.low is not None and found.high is not None and not found.low < 1 - DELTA <= found.high:
        answer = "holds" if found.low >= 1 - DELTA else "fails"
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n, "is": answer}


def measure(kind: str, margin: float, d: int, shuffles: int, seed: int) -> Row:
    """What is claimed for one input, and what is measured."""
    chance = np.random.default_rng([seed, [*KINDS].index(kind), round(1 / margin), d])
    made = KINDS[kind](d, margin, chance)
    z = shares_of_margin(*made)
    lengths = claimed(z)
    possible = [n for n in lengths if n < d]
    top = min(lengths[1], d - 1)
    single = sorted({*range(1, min(lengths[0], d), 2), *possible})
    tried = sorted({*(odd(n) for n in np.geomspace(top / 6, 3 * top / 4, TRIED)), *possible})
    grids = single, [1, *possible], tried
    parts = [(completeness_of(sums, grids[0], fixed=True), completeness_of(sums, grids[1], fixed=False),
              soundness_of(sums, grids[2])) for sums in shuffled(z, shuffles, chance)]  # fmt: skip
    fixed, some, sound = (shares(*pair) for pair in zip(grids, zip(*parts, strict=True), strict=True))
    found: Row = {
        "kind": kind, "margin": margin, "d": d, "L1": lengths[0], "L2": lengths[1], "k": constant(z),
        "coordinate_bound": math.sqrt(d) * float(np.abs(made).max()), "variance": float(z.var()),
        "needed_fixed": needed(fixed), "needed_sound": needed(sound), "some_of_length_1": told(some[1]),
        "fixed_exact": [fixed_exact(d, margin, n) for n in possible] if kind == "flat" else None,
        "worst_order": worst_order(z, top) if top < d - 1 else None,
    }  # fmt: skip
    for name, n in zip(("at_L1", "at_L2"), lengths, strict=True):
        at = {which: told(by[n]) for which, by in (("fixed", fixed), ("some", some), ("sound", sound)) if n in by}
        found[name] = at or None  # no interval is longer than the input
    return found


def worst_order(z: Array, length: int) -> float:
    """Soundness when the coordinates come sorted: of the best L coordinates, whatever their places."""
    return float(soundness_of(np.pad(np.cumsum(np.sort(z)), (1, 0))[None], [length])[0, 0])


def unbounded(margin: float, d: int, shuffles: int, seed: int) -> Row:
    """Soundness of `lone` at L2 of a flat input."""
    chance = np.random.default_rng([seed, d])
    length, z = claimed(shares_of_margin(*flat(d, margin, chance)))[1], shares_of_margin(*lone(d, margin, chance))
    scores = (soundness_of(sums, [length]) for sums in shuffled(z, shuffles, chance))
    return {"kind": "lone", "margin": margin, "d": d, "length": length, "sound": told(shares([length], scores)[length])}


def growth(kind: str, margin: float, rows: Sequence[Row]) -> Row:
    """Growth of the length needed for soundness, in 1/margin² for each 1 of ln d; None where too few d are known."""
    mine = [row for row in rows if (row["kind"], row["margin"]) == (kind, margin) and row["at_L2"]]
    known = [row for row in mine if None not in row["needed_sound"].values()]
    if len(known) < 2:
        return {"kind": kind, "margin": margin, "measured": None}
    few, many = (known[place]["needed_sound"] for place in (0, -1))
    scale = margin**2 / math.log(known[-1]["d"] / known[0]["d"])
    pairs = {"value": ("value", "value"), "low": ("low", "high"), "high": ("high", "low")}
    return {
        "kind": kind, "margin": margin, "from_d": known[0]["d"], "to_d": known[-1]["d"],
        "measured": {end: scale * (many[last] - few[first]) for end, (last, first) in pairs.items()},
        "claimed": scale * (known[-1]["L2"] - known[0]["L2"]),
    }  # fmt: skip


def points(rows: Sequence[Row], *keys: str, scaled: bool = False) -> Array:
    """What the rows hold under the keys, where it is known."""
    found = []
    for row in rows:
        held = reduce(lambda within, key: within[key], keys, row)
        scale = row["margin"] ** 2 / row["variance"] if scaled else 1.0
        if None not in held.values():
            found.append((math.log2(scale * row["d"]), *(scale * held[end] for end in ("value", "low", "high"))))
    return np.array(found).reshape(-1, 4)


def plot(rows: Sequence[Row]) -> str:
    """Shares at L1 and L2, lengths claimed and needed, and lengths of all kinds of input on one scale, as SVG."""
    by_case = {case: [row for row in rows if (row["kind"], row["margin"]) == case and row["at_L2"]] for case in CASES}
    chief, ds = by_case[CHIEF], np.log2([row["d"] for row in by_case[CHIEF]])
    promised, first, second = (np.stack([ds, line], axis=1) for line in (
        np.full(len(ds), 1 - DELTA), [row["L1"] for row in chief], [row["L2"] for row in chief]))  # fmt: skip
    every = [(f"{kind}, margin 1/{round(1 / margin)}", *mark, points(mine, "needed_sound", scaled=True))
             for ((kind, margin), mine), mark in zip(by_case.items(), MARKS, strict=True)]  # fmt: skip
    most = np.concatenate([series[3] for series in every]).max(axis=0, initial=1)
    x = Axis(float(ds[0]) - 0.5, float(ds[-1]) + 0.5, "log₂ d")
    panels: list[Chart] = [
        ("Flat input, margin 1/4: what holds", x, Axis(0, 1, "share of shuffles, with 95 % intervals"), [
            ("at L1: the first interval certifies the label", "b0", "disc", points(chief, "at_L1", "fixed")),
            ("at L2: no interval certifies the other label", "b2", "triangle", points(chief, "at_L2", "sound")),
            ("at L1: no interval certifies the other label", "b1", "square", points(chief, "at_L1", "sound")),
            ("claimed of the first two: at least 0.95", "k", "", promised)]),
        ("The same input: lengths claimed and needed", x, Axis(0, float(second[:, 1].max()) * 1.05, "coordinates"), [
            ("L2, claimed for soundness", "b2", "", second),
            ("needed for soundness", "b2", "triangle", points(chief, "needed_sound")),
            ("L1, claimed for completeness", "b0", "", first),
            ("needed by the first interval for completeness", "b0", "disc", points(chief, "needed_fixed"))]),
        ("All inputs: length needed for soundness",
         Axis(2, max(most[0], 2) + 0.5, "log₂ (d × margin² / variance of z)"),
         Axis(0, most[3] * 1.05, "length × margin² / variance of z"), every),
    ]  # fmt: skip
    return page(panels)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--powers", type=int, nargs="+", default=[9, 11, 13, 15, 17], choices=range(9, 23), help="of 2")
    parser.add_argument("--shuffles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    asked = parser.parse_args()
    start = time.perf_counter()
    ds = [2**power for power in asked.powers]
    rows = [measure(kind, margin, d, asked.shuffles, asked.seed) for kind, margin in CASES for d in ds]
    found = {
        **origin("benchmarks.linear"), "shuffles": asked.shuffles, "seed": asked.seed,
        "delta": DELTA, "confidence": 0.95, "rows": rows, "growth": [growth(*case, rows) for case in CASES],
        "unbounded": [unbounded(CHIEF[1], d, asked.shuffles, asked.seed) for d in ds],
        "seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time(), 1),
    }  # fmt: skip
    if asked.plot:
        asked.plot.write_text(plot(rows), encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
