"""Recreates maps that an audit made itself, and compares them with those that it stored."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from auditkit.arrays import Array
from auditkit.data.bundles import open_bundle
from auditkit.data.dataset import Dataset
from auditkit.errors import ModelFailure
from auditkit.methods.notes import Note, merged
from auditkit.methods.registry import METHODS
from auditkit.methods.request import MethodResult, Pool
from auditkit.metrics.faithfulness import as_probable, choose_labels, default_labels
from auditkit.metrics.similarity import rank_correlation
from auditkit.model.classifier import OnnxClassifier
from auditkit.model.device import CPU
from auditkit.records import to_json
from auditkit.runs import randomisation
from auditkit.runs.evaluation.images import UnitImages, load_images, probabilities
from auditkit.runs.evaluation.plan import EvaluationPlan, environment
from auditkit.runs.executor import Progress, Tick, UnitProgress, silent
from auditkit.runs.explain import Explanation, drawn_pool, recompute_in_units, recompute_maps
from auditkit.runs.explanation.record import Record
from auditkit.runs.folder.figures import Hint, NotRandomised, Randomisation, RandomisationStage, Reproduction
from auditkit.runs.folder.names import MAPS, POLICY, RANDOMISED, RESULTS
from auditkit.verdict import reproduce
from auditkit.verdict.hints import find_hints, should_search
from auditkit.verdict.policy_file import parse_policy
from auditkit.verdict.verify.recompute import OTHER
from auditkit.verdict.verify.run_record import Outcome, RecordedRun, differences

# Least rank correlation of like maps. On the CPU, gradients, grad-cam, rise, occlusion and differences gave equal
# bits alone and in a batch; with weights rounded as in TF32 the least was 0.997.
ALIKE = 0.99
MOVED = 0.02  # a rank correlation of supplied maps with recreated ones, by the rounding of another device
LEARNED_MOVED = 0.1  # the median of those of learned masks, and its limit


def check_maps(
    recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], pool: Dataset | None, slack: float,
    progress: Progress,
) -> Outcome:  # fmt: skip
    """Recreate the maps of some images and compare them with those of the run."""
    explanation = requested(recorded)
    (bundle,) = plan.bundles.values()
    model = _classifier(recorded, plan)
    batch, tick = load_images(positions, plan.images, model.card, model.signature), progress(len(positions))
    drawn = drawn_pool(model, plan.images if pool is None else pool, explanation)
    labels = [bundle.labels[image] for image in batch.ids]
    result = recompute_in_units(model, batch, labels, drawn, explanation, tick)
    tick(len(positions) - len(batch.ids))
    problems, unchecked = list[str](), list[str]()
    rule, prob = _label_rule(explanation, model), probabilities(model, batch.inputs)
    for image, scores, expected in zip(batch.ids, prob, choose_labels(prob, rule), strict=True):
        chosen, stored = expected.tolist(), set(bundle.labels[image])
        if stored != set(chosen):
            alike = as_probable(rule, scores, chosen, stored, slack)
            (unchecked if alike else problems).append(
                f"image '{image}' has maps for other labels than '{rule}' chooses"
            )
    correlations = dict[str, float]()
    for image, by_label in zip(batch.ids, result.maps, strict=True):
        correlations |= {f"of image '{image}', label {label}": rank_correlation(values, bundle.get(image, label))
                         for label, values in by_label.items()}  # fmt: skip

    def repeated() -> list[float]:
        again = progress(len(batch.ids))
        return reproduce.steadiness(
            lambda images, pool: recompute_in_units(model, images, labels, pool, explanation, again), batch, drawn,
            result.maps,
        )  # fmt: skip

    how_alike, unlike = _compared(correlations, explanation, repeated)
    problems += unlike
    problems += _wrong_notes(recorded, result.notes, complete=len(batch.ids) == len(bundle.labels))
    made = f"{len(correlations)} maps of {len(positions)} of {len(plan.images)} images, made again by"
    return Outcome(f"{made} {explanation.name()}, {how_alike}", problems, unchecked)


def _compared(
    correlations: Mapping[str, float], explanation: Explanation, repeated: Callable[[], list[float]]
) -> tuple[str, list[str]]:
    """How alike stored and recreated maps are, and what is wrong with them.

    Learning magnifies last digits, which differ between devices: where most learned masks do not come out again, they
    are compared with how well the method repeats itself. Where most do, the digits are the same, and each mask counts.
    """
    least, median = min(correlations.values(), default=1.0), float(np.median(list(correlations.values()) or [1.0]))
    if median >= ALIKE or not METHODS[explanation.method].learns:
        unlike = [
            f"the map {which} is not the one that {explanation.name()} makes: their rank correlation is {value:.3f}, "
            f"at least {ALIKE} is expected" for which, value in correlations.items() if not value >= ALIKE
        ]  # fmt: skip
        return f"rank pixels alike (least rank correlation {least:.4f}; at least {ALIKE} is expected)", unlike
    steady = repeated()
    limit = reproduce.learned_limit(steady)
    alike = (f"have a median rank correlation of {median:.3f}; at least {limit:g} is expected, since the method's own "
             f"maps have {np.median(steady):.3f} when last digits differ")  # fmt: skip
    return alike, [] if median >= limit else [f"the maps are not those that {explanation.name()} makes: they {alike}"]


def check_reproductions(recorded: RecordedRun, plan: EvaluationPlan, pool: Dataset | None) -> Outcome:
    """Reproductions of supplied maps that come out otherwise; some depend on the machine."""
    results, problems, unchecked = recorded.results, list[str](), list[str]()
    policy = None if results.policy is None else parse_policy(results.policy.text, POLICY)
    bundles = plan.bundles if reproduce.should_reproduce(policy, results) else {}
    moved = plan.model.device is not CPU or recorded.about["environment"] != environment(plan.model)
    now = {entry.bundle: entry for entry in reproduce.reproduce(plan.model, plan.images, bundles, pool, results)}
    then = {entry.bundle: entry for entry in results.reproductions}
    for name in now | then:
        pair = then.get(name), now.get(name)
        if not _same_reproduction(*pair):
            by_machine = None not in pair and any(entry and _by_machine(entry, moved) for entry in pair)
            texts = [entry.text if entry else "nothing" for entry in pair]
            text = f"{RESULTS} says of reproduction: {texts[0]} Expected: {texts[1]}"
            (unchecked if by_machine else problems).append(text)
    return Outcome(f"{len(now)} come out again", problems, unchecked)


def _by_machine(entry: Reproduction, moved: bool) -> bool:
    """Whether another machine may find otherwise."""
    return entry.obstacle == "failed" or (moved and entry.decides == "median")


def _same_reproduction(first: Reproduction | None, second: Reproduction | None) -> bool:
    if first is None or second is None or first.reproduced != second.reproduced:
        return False
    compared, most = ("median", "least"), MOVED
    if second.decides == "median":
        compared, most = ("median", "limit"), LEARNED_MOVED
    near = all(abs((getattr(first, name) or 0.0) - (getattr(second, name) or 0.0)) <= most for name in compared)
    return near and replace(first, **{name: getattr(second, name) for name in {*compared, "least"}}) == second


def check_unmapped(
    recorded: RecordedRun, plan: EvaluationPlan, positions: Sequence[int], pool: Dataset | None
) -> Outcome:
    """Whether the method fails on images that have no map."""
    explanation, model = requested(recorded), _classifier(recorded, plan)
    drawn = drawn_pool(model, plan.images if pool is None else pool, explanation)
    problems, rule = list[str](), _label_rule(explanation, model)
    for position in positions:
        batch = load_images([position], plan.images, model.card, model.signature)
        try:
            labels = [tuple(chosen.tolist()) for chosen in choose_labels(probabilities(model, batch.inputs), rule)]
            recompute_maps(model, batch, labels, drawn, explanation, UnitProgress(silent(1), 1))
        except ModelFailure:
            continue
        problems += [f"image '{image}' has no map, though {explanation.name()} makes some" for image in batch.ids
                     if any(labels)]  # fmt: skip
    return Outcome(f"{len(positions)} images without a map can have none", problems)


def _label_rule(explanation: Explanation, model: OnnxClassifier) -> str:
    return explanation.labels or str(default_labels(model.signature.classes))


def _wrong_notes(recorded: RecordedRun, notes: Sequence[Note], *, complete: bool) -> Iterator[str]:
    """Notes of the run on its maps that recreating them does not give; counts only where all were recreated."""
    parts = Record.of(recorded.store.folder / MAPS).parts
    stored, recreated = (merged(notes) for notes in (chain.from_iterable(part.notes for part in parts), notes))
    texts, expected = ({str(note) for note in each if note.hits != 0 and (complete or not _counts(note))}
                       for each in (stored, recreated))  # fmt: skip
    yield from (f"the maps have a note '{text}', which making them again does not give" for text in texts - expected)
    yield from (f"the maps lack the note '{text}'" for text in expected - texts)


def _counts(note: Note) -> bool:
    """Whether a note is about some of the maps, so that it depends on which of them are made again."""
    return note.total is not None or note.values is not None


def requested(recorded: RecordedRun) -> Explanation:
    """The recorded request."""
    explained = recorded.results.explained
    if explained is None:
        raise ValueError("the run did not make its maps")
    request = explained.request
    options = tuple(request.options.items())
    explanation = Explanation(request.method, request.labels, options, request.seed, request.gradient)
    if explanation.name() != explained.method:
        raise ValueError(f"the request is for {explanation.name()}, but the maps are said to be of {explained.method}")
    return explanation


def _classifier(recorded: RecordedRun, plan: EvaluationPlan) -> OnnxClassifier:
    """The model in the precision that made the maps; figures may have been measured in a better one."""
    model, then = plan.model, recorded.run["environment"]
    if model.file is None:
        raise TypeError("a Python function cannot be called again")
    if then["device"] != model.device.name or then["precision"] == model.settings.precision:
        return model
    settings = replace(model.settings, precision=then["precision"])
    return OnnxClassifier(model.file, model.signature, model.card, settings)


def check_randomisation(
    recorded: RecordedRun, plan: EvaluationPlan, images_mapped: int, pool: Dataset | None, progress: Progress
) -> Outcome:
    """Re-initialise the model again, recreate the maps of some images, and compare them with the stored ones."""
    policy = parse_policy("" if recorded.results.policy is None else recorded.results.policy.text, POLICY)
    if policy.randomisation is None:
        raise ValueError("the policy asks for no randomisation")
    (bundle,) = plan.bundles.values()
    check = randomisation.prepare(
        _classifier(recorded, plan), plan.images, requested(recorded), pool, bundle,
        images_wanted=policy.randomisation.images, stages=policy.randomisation.stages,
        seed=recorded.settings.seed, confidence=policy.evaluation.confidence,
    )  # fmt: skip
    if isinstance(check, NotRandomised):
        expected, problems, about = Randomisation(check), list[str](), ""
    else:
        tick = progress(len(check.counts) * len(check.originals[:images_mapped]))
        expected, problems, about = _recreated(recorded, check, images_mapped, tick)
    problems += differences(recorded.plain["randomisation"], to_json(expected), "randomisation")
    return Outcome(about or "no map of a re-initialised model can be made", problems)


def _recreated(
    recorded: RecordedRun, check: randomisation.Check, images_mapped: int, tick: Tick
) -> tuple[Randomisation, list[str], str]:
    """The result that the stored maps of the stages give, their problems, and how alike recreated ones are."""
    series, notes, problems = list[RandomisationStage](), list[str](), list[str]()
    correlations, recreated = dict[str, float](), dict[int, list[Array]]()
    some = replace(check, originals=check.originals[:images_mapped])
    randomised = recorded.results.randomisation
    assessed = {entry.stage for entry in (randomised.series if randomised else None) or ()}
    for stage, layers in enumerate(check.counts, start=1):
        stored = recorded.store.folder / RANDOMISED / f"stage-{stage}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                maps = randomisation.stage_maps(
                    some if stage in assessed else check, stage, Path(folder) / "maps", tick
                )
            except randomisation.NoMaps as error:
                notes.append(f"stage {stage}, {layers} of {len(check.layers)} layers, has no figure: {error}")
                continue
        bundle = open_bundle(stored)
        stored_maps = [bundle.get(original.image, original.label) for original in check.originals]
        recreated[layers] = maps[: len(some.originals)]
        correlations |= {
            f"of image '{original.image}' at stage {stage}": rank_correlation(values, stored_values)
            for original, values, stored_values in zip(some.originals, maps, stored_maps, strict=False)
        }
        if bundle.header.model != check.key(check.layers[:layers]):
            problems.append(f"the maps of stage {stage} are said to be of another model")
        if len(bundle) != len(check.originals):
            problems.append(f"stage {stage} has {len(bundle)} maps, expected {len(check.originals)}")
        series.append(check.stage(stage, stored_maps))
        notes += randomisation.constant_note(series[-1])
    if not series:
        return Randomisation(NotRandomised("no-stage", notes[-1])), problems, ""
    how_alike, unlike = _compared(correlations, check.explanation, lambda: _repeated(some, recreated))
    about = f"{len(correlations)} maps of re-initialised models, made again, {how_alike}"
    return check.result(series, notes), [*unlike, *problems], about


def _repeated(check: randomisation.Check, recreated: Mapping[int, list[Array]]) -> list[float]:
    """How well the method repeats itself on the models of the stages, whose maps are given by their layers' number."""
    unit = load_images([original.position for original in check.originals], check.images, check.model.card,
                       check.model.signature)  # fmt: skip
    labels, steady = [(original.label,) for original in check.originals], list[float]()
    for layers, values in recreated.items():
        maps = tuple({label: each} for (label,), each in zip(labels, values, strict=True))
        model = check.reinitialised(check.layers[:layers])

        def recompute(images: UnitImages, pool: Pool, model: OnnxClassifier = model) -> MethodResult:
            return recompute_in_units(model, images, labels, pool, check.explanation)

        steady += reproduce.steadiness(recompute, unit, check.pool, maps)
    return steady


def check_hints(recorded: RecordedRun, plan: EvaluationPlan) -> Outcome:
    """Hints that do not come out again."""
    results = recorded.results
    policy = None if results.policy is None else parse_policy(results.policy.text, POLICY)
    now = (
        find_hints(plan.model, plan.images, plan.bundles, plan.settings)
        if policy and should_search(policy, results)
        else ()
    )
    then = results.hints
    same = len(then) == len(now) and all(map(_same_hint, then, now))
    texts = [" ".join(hint.text for hint in hints) or "none" for hints in (then, now)]
    problems = [] if same else [f"{RESULTS}: the hints are: {texts[0]}, expected: {texts[1]}"]
    return Outcome(f"{len(now)} come out again", problems)


def _same_hint(first: Hint, second: Hint) -> bool:
    near = max(abs(first.before - second.before), abs(first.after - second.after)) <= OTHER
    return near and replace(first, before=0.0, after=0.0) == replace(second, before=0.0, after=0.0)
