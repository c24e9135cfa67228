"""Measures one prepared unit: its curves, and from them a row of figures for every map."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from auditkit.arrays import Array
from auditkit.metrics.faithfulness import completeness, soundness
from auditkit.runs.evaluation.batch import Batch, CurveKey
from auditkit.runs.evaluation.crops import Crop
from auditkit.runs.evaluation.curves import MeasuredCurve, measure_curves
from auditkit.runs.evaluation.maps import MapUse, MissingMap
from auditkit.runs.evaluation.plan import EvaluationPlan
from auditkit.runs.evaluation.settings import CurvePair, CurveRule


@dataclass(frozen=True)
class Row:
    """The figures of one map for one image, label and infill: a line of the Parquet files, whose columns these are.

    None: not measured, or not defined.
    """

    image: str
    label: int
    bundle: str  # or control
    infill: str
    prob: float | None  # of the label on the whole image
    predicted: bool
    insertion: float | None = None
    insertion_error: float | None = None
    deletion: float | None = None
    deletion_error: float | None = None
    alpha: float | None = None
    beta: float | None = None
    saliency_metric: float | None = None
    box_degenerate: bool | None = None
    pointing_hit: float | None = None
    iou: float | None = None
    tied_fraction: float | None = None
    flags: Sequence[str] = ()
    keep_counts: "Array | Sequence[int] | None" = None
    curve: "Array | Sequence[float] | None" = None
    error: str | None = None  # why there are no figures
    map_digest: str | None = None
    truth: int | None = None
    prediction: int | None = None
    insertion_low: float | None = None  # over the orders of tied pixels that were tried
    insertion_high: float | None = None
    saliency_by_delta: Sequence[float] | None = None
    degenerate_by_delta: Sequence[bool] | None = None
    map_top: bytes | None = None
    log_odds: "Array | Sequence[float] | None" = None  # areas of all labels of the image, ascending, under this map
    log_odds_error: "Array | Sequence[float] | None" = None


def measure(
    plan: EvaluationPlan, batch: Batch, on_rows: Callable[[int], None] = lambda _count: None,
    device: AbstractContextManager[None] = nullcontext(),
) -> list[Row]:  # fmt: skip
    """A row for each use and infill, in the order of the uses, then one for each missing map.

    `on_rows` takes the number of masked images that the model has just run; `device` is held while it runs.
    """
    requests = list(batch.curves.values())
    with device:
        measured = measure_curves(batch.run_rows, requests, plan.span, plan.settings, batch.label_set, on_rows)
    return _Figures(plan, batch, dict(zip(batch.curves, measured, strict=True))).rows()


class _LabelCurve(NamedTuple):
    """A measured curve of one label, and the log-odds of all labels of the image along it."""

    area: float
    error: float
    counts: Array
    values: Array
    odds_areas: Array | None
    odds_errors: Array | None


@dataclass(frozen=True)
class _Figures:
    """A batch whose curves are measured."""

    plan: EvaluationPlan
    batch: Batch
    curves: Mapping[CurveKey, MeasuredCurve]

    def rows(self) -> list[Row]:
        pairs = list(product(enumerate(self.batch.uses), self.plan.curve_pairs))
        insertions = [self._curve(pair.insertion, use, use.map.positions[pair.insertion.ties])
                      for (_, use), pair in pairs]  # fmt: skip
        prob = np.array([self.batch.prob[use.image, use.label] for (_, use), _ in pairs])
        ratios = self._ratios(np.array([insertion.area for insertion in insertions]), prob)
        rows = []
        for ((position, use), pair), insertion, ratio in zip(pairs, insertions, ratios, strict=True):
            rows.append(self._row(use, pair, insertion, ratio, self.batch.crops.get(position, ())))
        gaps = product(self.batch.missing, self.plan.curve_pairs)
        return rows + [replace(self._without_figures(gap, pair), error=gap.reason) for gap, pair in gaps]

    def _without_figures(self, use: MapUse | MissingMap, pair: CurvePair) -> Row:
        batch, prediction = self.batch, int(self.batch.predicted[use.image])
        prob = float(batch.prob[use.image, use.label])
        return Row(batch.ids[use.image], use.label, use.source, pair.insertion.infill, prob, prediction == use.label,
                   truth=batch.truth[use.image], prediction=prediction)  # fmt: skip

    def _ratios(self, insertion: Array, prob: Array) -> list[tuple[float | None, float | None]]:
        """Alpha and beta of each row; None where the settings leave them out."""
        eps1, eps2 = self.plan.settings.eps1, self.plan.settings.eps2
        if eps1 is None or eps2 is None:
            return [(None, None)] * len(prob)
        alphas, betas = completeness(insertion, prob, eps1), soundness(insertion, prob, eps2)
        return list(zip(alphas.tolist(), betas.tolist(), strict=True))

    def _curve(self, rule: CurveRule, use: MapUse, position: int) -> _LabelCurve:
        """The curve of the ranks at that position of the bank, for the label of the use."""
        key = rule, use.image, position
        measured, label = self.curves[key], self.batch.curves[key].labels.index(use.label)
        return _LabelCurve(
            float(measured.areas[label]), float(measured.errors[label]), measured.counts, measured.values[:, label],
            measured.odds_areas, measured.odds_errors,
        )  # fmt: skip

    def _row(
        self, use: MapUse, pair: CurvePair, insertion: _LabelCurve, ratio: tuple[float | None, float | None],
        crops: tuple[Crop, ...],
    ) -> Row:  # fmt: skip
        settings, deletion = self.plan.settings, None
        if use.is_target and pair.deletion is not None:
            deletion = self._curve(pair.deletion, use, use.map.positions[pair.deletion.ties])
        tie_orders = [insertion.area] if settings.tie_orders else []
        tie_orders += [self._curve(pair.insertion, use, position).area for position in use.map.reshuffles]
        # The crop of the largest component comes first where it was asked for, before those of every delta.
        split = 1 if settings.saliency in ("component", "both") else 0
        component, by_delta = next(iter(crops[:split]), None), crops[split:]
        return replace(
            self._without_figures(use, pair),
            insertion=insertion.area, insertion_error=insertion.error,
            insertion_low=min(tie_orders, default=None), insertion_high=max(tie_orders, default=None),
            keep_counts=insertion.counts.astype(np.int32), curve=insertion.values.astype(np.float32),
            deletion=deletion.area if deletion else None, deletion_error=deletion.error if deletion else None,
            alpha=ratio[0], beta=ratio[1],
            saliency_metric=component.value if component else None,
            box_degenerate=component.box.degenerate if component else None,
            saliency_by_delta=[crop.value for crop in by_delta] or None,
            degenerate_by_delta=[crop.box.degenerate for crop in by_delta] or None,
            pointing_hit=use.pointing_hit, iou=use.iou, flags=use.flags,
            tied_fraction=use.map.tied_fraction, map_digest=use.map.digest, map_top=use.map.fingerprint,
            log_odds=insertion.odds_areas, log_odds_error=insertion.odds_errors,
        )  # fmt: skip
