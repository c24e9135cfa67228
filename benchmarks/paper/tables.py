"""The studies' figures as Markdown, the paper's own beneath ours."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from auditkit.records import from_json
from auditkit.report.markdown import table
from auditkit.runs.folder.figures import NotRandomised
from auditkit.runs.summary.wording import why_not_randomised
from benchmarks.paper.claims import REMARKS
from benchmarks.paper.published import TV
from benchmarks.paper.work import FAITHFUL, INFILLS, Figure

CLAIMED = ("measured", "claimed", "", "images")
SMALL = 0.005  # an interval within it would be told as 0.00


def told(one: Figure, form: str = ".2f") -> str:
    """A figure with its interval, or a dash."""
    if one["value"] is None:
        return "-"
    if one["low"] is None:
        return f"{one['value']:{form}}"
    return f"{one['value']:{form}} ({one['low']:{form}} to {one['high']:{form}})"


def by_weight(figures: Sequence[Figure]) -> str:
    """A line for each figure, a column for each weight of the penalty."""
    rows = list[list[str]]()
    for infill, name in dict.fromkeys((one["infill"], one["name"]) for one in figures):
        mine = [one for one in figures if (one["infill"], one["name"]) == (infill, name)]
        rows.append([INFILLS[infill], name.replace("_", " "), *(told(one) for one in mine)])
        rows.append(["", "less that of TV 0", "", *(told(one["less_tv0"], "+.2f") for one in mine[1:])])
        rows.append(["", "the paper's", *(f"{one['paper']:.2f}" for one in mine)])
    return table(["infill", "figure", *(f"TV {tv:g}" for tv in TV)], rows)


def by_row(figures: Sequence[Figure]) -> str:
    """A line for each kind of maps, a column for each metric."""
    kinds = list(dict.fromkeys((one["name"], one["infill"]) for one in figures))
    several = {name for name, infill in kinds if sum(other == name for other, _ in kinds) > 1}
    head = [f"{name.replace('_', ' ')}{f' ({infill})' if name in several else ''}" for name, infill in kinds]
    rows = list[list[str]]()
    for row in dict.fromkeys(str(one.get("row", one["bundle"])) for one in figures):
        by = {(one["name"], one["infill"]): one for one in figures if one.get("row", one["bundle"]) == row}
        rows.append([row, *(told(by[kind]) if kind in by else "" for kind in kinds)])
        papers = [by[kind].get("paper") if kind in by else None for kind in kinds]
        if any(value is not None for value in papers):
            rows.append(["the paper's", *("" if value is None else f"{value:.2f}" for value in papers)])
    return table(["maps", *head], rows)


def alone(figures: Sequence[Figure]) -> str:
    """The same of the predicted label, with a word on its last column."""
    return (
        f"{by_row(figures)}\n\nWhere no crop does better, the tuned threshold of the saliency metric keeps the whole "
        "image; the metric is then -log of the image's own probability, whatever the map. So it is in most rows here, "
        "and as it seems in the paper's, on a network that is less sure."
    )


def wide(figures: Sequence[Figure]) -> str:
    """The same over each image's own ten likeliest labels."""
    return (
        f"{by_row(figures)}\n\nThe paper's ten labels, those of Imagenette, are not to be had here. The least likely "
        "of an image's own ten often has a probability below eps2, 0.001: its soundness is then at most 0.001 over its "
        "area, whatever the map, and the worst of ten is near 0 in every row."
    )


def settling(figures: Sequence[Figure]) -> str:
    """What the loss and the figures come to with more and more steps, and at the paper's pace."""
    rows, before = list[list[str]](), 0.0
    for one in figures:
        steps = f"{int(one['pace']):,}" if one["pace"].isdigit() else "the paper's pace"
        fell = one.get("less_half")
        rows.append([f"TV {one['tv']:g}", steps, f"{one['loss']:.3f}",
                     f"{told(fell, '+.3f')}, {fell['value'] / before:+.0%}" if fell else "", f"{one['area']:.3f}",
                     *(told(one[name]) for name in FAITHFUL)])  # fmt: skip
        before = one["loss"]
    head = ["masks", "steps", "loss", "less half the steps'", "area", "worst completeness", "worst soundness"]
    return (
        f"{table(head, rows)}\n\nOn {figures[0]['n']} images. The loss is that over all pictures of the pool, in "
        "float32. The pace of learning was chosen among some twenty, in part on the same images."
    )


def stages(found: Figure) -> str:
    """Rank correlation of the maps with those of the true model, stage by stage."""
    if "series" not in found:
        return why_not_randomised(from_json(NotRandomised, found["not_assessed"], "randomisation"))
    rows = [[str(len(one["layers"])), f"{one['share']:.1%}", told({**one, "value": one["spearman"]})]
            for one in found["series"]]  # fmt: skip
    return table(["layers forgotten", "parameters", "Spearman"], rows)


def claimed(figures: Iterable[Figure]) -> str:
    """What is claimed, by the paper or of a method, and whether it is seen here."""
    return table(["claim", *CLAIMED], [_claim(one) for one in figures])


def findings(found: Iterable[tuple[str, Figure]]) -> str:
    """The same of several results, with the name of each, and what is known of those that are not shown."""
    several = list(found)
    open_ones = dict.fromkeys(one["claim"] for _, one in several if not one["holds"] and one["claim"] in REMARKS)
    drawn = table(["claim", *CLAIMED, "from"], [[*_claim(one), name] for name, one in several])
    return "\n".join([drawn, "", *(f"- {claim}: {REMARKS[claim]}" for claim in open_ones)]).rstrip()


def _claim(one: Figure) -> list[str]:
    said = {True: "holds", False: "does not hold", None: "not shown either way"}
    form = "+.2f" if any(abs(one[end] or 0) >= SMALL for end in ("value", "low", "high")) else "+.4f"
    return [one["claim"], told(one, form), f"{one['side']} {one['limit']:g}", said[one["holds"]], str(one["n"])]


def precisions(found: Figure) -> str:
    """By metric, what each lower precision changes."""
    of = {name: {one["name"]: one for one in changes} for name, changes in found.items()}
    rows = [[one["name"].replace("_", " "), str(one["figures"]),
             *(f"{by[one['name']][kind]:.1e}" for by in of.values() for kind in ("mean", "largest"))]
            for one in next(iter(found.values()))]  # fmt: skip
    return table(["metric", "figures", *(f"{name}, {kind}" for name in of for kind in ("mean", "largest"))], rows)


def in_half(figures: Iterable[Figure]) -> str:
    """What learning masks in half precision changes in their scores, and what other draws do."""
    ways = {"half": "in float16", "draws": "with other draws"}
    rows = [[ways[one["bundle"]], one["name"].replace("_", " "), told(one, "+.3f"), str(one["n"])] for one in figures]
    return table(["masks", "figure", "less the usual masks'", "images"], rows)


def hours(figures: Sequence[Figure]) -> str:
    """What an audit of the paper's size would take."""
    by = {one["what"]: one for one in figures}
    share = by["masks"]["value"] / by["both"]["value"]
    rows = [[one["what"], told(one), str(one["n"])] for one in figures]
    return (
        f"{table(['1,000 images, ten labels each', 'hours', 'chunks measured'], rows)}\n\n"
        f"Masks are {share:.0%} of it, and their price is steps times distractors: half of either halves it."
    )


def prices(figures: Sequence[Figure]) -> str:
    """A line for each setting of learning, the cheapest first."""
    infills = list(INFILLS.values())
    head = ["masks", "images a mask", *(f"price over {name}" for name in infills)]
    head += [f"{name.replace('_', ' ')}, TV 0.01, {where}" for where in infills for name in FAITHFUL]
    rows = [[one["setting"], f"{one['rows']:,}", *(told(price, "+.2f") for price in one["price"]),
             *(told(value) for value in one["figures"])]
            for one in sorted(figures, key=lambda one: int(one["rows"]))]  # fmt: skip
    return table(head, rows)


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "claims": ("What is claimed", claimed),
    "price": ("What a penalty of 0.01 costs in worst completeness, by how masks are learned", prices),
    "top_two": ("The two likeliest labels, eps 0 and 0.1", by_weight),
    "partial": ("All labels, areas over 0.2 to 0.6 of the pixels, eps 0.01 and 0.1", by_weight),
    "intrinsic": ("The predicted label alone", alone),
    "upsampled": ("Masks of every pixel and masks upsampled by 4, eps 0 and 0.1", by_row),
    "coarse": ("Upsampled masks without penalty by the steps they take, on half of the images", by_row),
    "settling": ("The same masks by the steps they take, on a few of the images", settling),
    "order": ("Masks without penalty that swap the order of what they hide, eps 0 and 0.1", by_row),
    "two": ("The two likeliest labels", by_row),
    "ten": ("The ten likeliest labels of each image, renormalised", wide),
    "corners": ("One corner of each photograph, the two likeliest labels", by_row),
    "randomisation": ("Maps of a model whose layers are re-initialised, from the last on", stages),
    "ensembles": ("Sums of K disjoint masks", by_row),
    "differences": ("Maps without any gradient", by_row),
    "precisions": ("Change of figures from strict float32", precisions),
    "masks_in_half": ("Masks learned otherwise", in_half),
    "cost": ("What an audit of the paper's size would take", hours),
}


def noted(made: dict[str, Figure]) -> str:
    """What must be known of the maps."""
    return "\n".join(f"- {name}: {note}." for name, one in made.items() for note in one["notes"])


def markdown(found: dict[str, Any]) -> str:
    """Every table that there are figures for, and what must be known of the maps."""
    parts = [f"**{title}**\n\n{draw(found[key])}" for key, (title, draw) in TABLES.items() if found.get(key)]
    if notes := noted(found.get("maps", {})):
        parts.append(f"**Of the maps**\n\n{notes}")
    return "\n\n".join(parts)
