"""Figures by group of images, such as those of a site, and the gaps between groups, in words."""

from auditkit.metrics.table import METRICS, title
from auditkit.report.formatting import count, exact, name, number, sentence, source
from auditkit.report.tables import Row, Table
from auditkit.runs.folder.groups import Gap, Groups
from auditkit.runs.folder.results import Results

_Source = tuple[str, str | None, str]  # a column, a bundle and an infill


def tables(results: Results) -> list[Table]:
    """Each column's groups by figure, for each set of maps and infill; accuracy is in the first."""
    if results.groups is None:
        return []
    sources = dict.fromkeys((figure.column, figure.bundle, figure.infill) for figure in results.groups.figures)
    with_maps = {column for column, bundle, _ in sources if bundle}
    shown = [key for key in sources if key[1] or key[0] not in with_maps]
    first = {key[0]: key for key in reversed(shown)}
    return [_table(results.groups, key, of_model=first[key[0]] == key) for key in shown]


def _table(groups: Groups, key: _Source, *, of_model: bool) -> Table:
    column, bundle, infill = key
    figures = [figure for figure in groups.figures if figure.column == column and (
        (figure.bundle, figure.infill) == (bundle, infill) or (of_model and figure.bundle is None))]  # fmt: skip
    metrics = [metric for metric in METRICS if any(figure.name == metric for figure in figures)]
    rows: list[Row] = []
    for group in dict.fromkeys(figure.group for figure in figures):
        cells = {figure.name: figure for figure in figures if figure.group == group}
        images = exact(max(figure.n for figure in cells.values()))
        rows.append((name(group, 60), images, [cells.get(metric) for metric in metrics]))
    maps = f"{source(bundle)}, infill {name(infill)}, " if bundle else ""
    return Table(f"{maps}images by {name(column)}", metrics, rows)


def shown_gaps(results: Results) -> list[str]:
    """The gaps that are not chance, in a sentence each."""
    groups = results.groups
    return [_gap(gap, groups) for gap in groups.gaps if gap.at_least] if groups else []


def _gap(gap: Gap, groups: Groups) -> str:
    values = {figure.group: figure.value for figure in groups.figures
              if (figure.column, figure.name, figure.bundle, figure.infill)
              == (gap.column, gap.name, gap.bundle, gap.infill)}  # fmt: skip
    both = (f"{number(values[group])} for {name(gap.column)} {name(group)}" for group in (gap.lower, gap.higher))
    what = f"{title(gap.name)} of {source(gap.bundle)}" if gap.bundle else title(gap.name)
    return sentence(f"{what} differs between groups: {', '.join(both)}. The gap is at least {number(gap.at_least)}")


def notes(results: Results) -> list[str]:
    """What the figures by group show, and what they leave out, a sentence each."""
    groups = results.groups
    if groups is None:
        return []
    chance = [f"{title(gap.name)} by {name(gap.column)}" for gap in groups.gaps if not gap.at_least]
    texts = shown_gaps(results)
    if chance:
        texts.append(f"Gaps that may be chance: {', '.join(dict.fromkeys(chance))}.")
    if groups.gaps:
        texts.append(f"Pairs of groups were compared in {count(groups.tests, 'test')}. In at most 5 % of audits one of "
                     "them shows a gap that is not there, if images are independent of each other.")  # fmt: skip
    return [*texts, *map(sentence, left_out(results))]


def left_out(results: Results) -> list[str]:
    """Groups without figures, and images without a group."""
    groups, texts = results.groups, list[str]()
    for column, sizes in groups.too_small.items() if groups else ():
        few = ", ".join(f"{name(group, 60)} ({size})" for group, size in sizes.items())
        texts.append(f"{name(column)}: groups with fewer than {groups.fewest if groups else 0} images: {few}")
    for column, images in groups.without_group.items() if groups else ():
        texts.append(f"{name(column)}: {count(images, 'image')} without a group")
    return texts
