"""Where a regulator may file the report: what it holds for a requirement, and what it does not, by what the run has."""

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """A requirement, what in this report is evidence for it, and what is missing."""

    where: str
    about: str
    evidence: tuple[tuple[str, str], ...]  # in words, and what the run must have for it, if anything
    sections: tuple[tuple[str, str], ...]  # anchor and title
    missing: tuple[str, ...] = ()  # what no such report holds; of a run, also what this one does not


CHECKS, IDENTITY, FIGURES = ("checks", "Checks"), ("identity", "Identity"), ("figures", "Figures")
LIMITS, CLASSES, GALLERY = ("limits", "Limits"), ("classes", "Classes"), ("gallery", "Gallery")
TERMS, BASELINE, RANDOM = ("definitions", "Definitions"), ("baseline", "Baseline"), ("randomisation", "Randomisation")
GROUPS, EXAMINATION = ("groups", "Groups"), ("examination", "Examination")
# Sections that may have nothing to show.
OPTIONAL = ("classes", "groups", "gallery", "baseline", "randomisation", "examination")

ANNEX_IV = (
    Item("1 (a), (c)", "System and its version; versions of relevant software",
         (("digest of the model file", "file"), ("versions of what ran it", "")), (IDENTITY,)),
    Item("2 (e)", "Technical measures that help deployers interpret outputs",
         (("how faithful the heatmaps are that would serve as such a measure", "figures"),), (FIGURES, GALLERY)),
    Item("2 (g)", "Validation and testing: procedures, data, metrics, test logs and dated reports",
         (("metrics with intervals", "figures"), ("test images by digest, command, times", ""), ("policy", "policy"),
          ("signature is left to a person", "")), (CHECKS, IDENTITY, FIGURES)),
    Item("3", "Capabilities and limitations of performance, also for groups; interpretation of outputs",
         (("figures by class", "classes"), ("figures by group", "groups"), ("worst images", "gallery"),
          ("limits of the claim", "")), (CLASSES, GROUPS, GALLERY, LIMITS)),
    Item("4", "Why the performance metrics are appropriate",
         (("definitions", ""), ("controls", "controls"), ("what the metrics may not be used to claim", "")),
         (TERMS, LIMITS)),
    Item("6", "Changes through the life cycle", (("paired differences to an earlier run", "baseline"),), (BASELINE,)),
)  # fmt: skip

NIST = (
    Item("MAP 2.2", "Knowledge limits of the system, and how people may use its output",
         (("limits of the claim", ""),), (LIMITS,)),
    Item("MAP 2.3", "Scientific integrity of tests: design, data selection, construct validity",
         (("settings, seeds", ""), ("controls", "controls"), ("intervals", "figures")), (IDENTITY, FIGURES)),
    Item("MEASURE 1.1", "Metrics chosen; what is not measured is documented",
         (("policy, checks that were not assessed", "policy"), ("limits", "")), (CHECKS, LIMITS)),
    Item("MEASURE 2.1", "Test sets, metrics and tools documented", (("digests, versions, settings, definitions", ""),),
         (IDENTITY, TERMS)),
    Item("MEASURE 2.5", "Validity and reliability, limits of generalising",
         (("intervals over images", "figures"), ("runtime error", "runtime"), ("randomisation", "randomisation")),
         (FIGURES, RANDOM, LIMITS)),
    Item("MEASURE 2.9", "The model is explained and validated, its output interpreted in context",
         (("completeness", "worst_completeness"), ("soundness", "worst_soundness"), ("best effort", "best_effort"),
          ("insertion", "insertion"), ("controls beside them", "controls")), (FIGURES, GALLERY)),
    Item("MEASURE 2.13", "Effectiveness of the metrics themselves",
         (("controls", "controls"), ("randomisation", "randomisation"), ("runtime check", "runtime")),
         (FIGURES, RANDOM)),
)  # fmt: skip

_ACCURACY, _BY_GROUP = ("accuracy with its interval", "accuracy"), ("figures and gaps by group", "groups")
_EXCHANGED = ("whether predictions change when parts of images are exchanged or removed", "examination")
_FAITHFUL = ("how faithful the heatmaps are, with intervals", "figures")
ARTICLES = (
    Item("13 (3)(b)(ii)", "Accuracy, robustness and cybersecurity that were tested, and what may affect them",
         (_ACCURACY, _EXCHANGED), (FIGURES, EXAMINATION), ("cybersecurity",)),
    Item("13 (3)(b)(iv), (vii)", "What explains the output, and how to interpret it",
         (_FAITHFUL, ("worst, median and best heatmaps", "gallery")), (FIGURES, GALLERY), ("instructions for use",)),
    Item("13 (3)(b)(v)", "Performance for specific persons or groups", (_BY_GROUP, ("figures by class", "classes")),
         (GROUPS, CLASSES)),
    Item("15 (1), (3)", "Appropriate accuracy, its levels and metrics",
         (_ACCURACY, ("definitions", ""), ("error of the machine", "runtime")), (FIGURES, TERMS),
         ("which level is appropriate",)),
    Item("15 (4)", "Resilience to errors, faults and inconsistencies", (_EXCHANGED,), (EXAMINATION,),
         ("faults in operation", "feedback loops")),
    Item("15 (5)", "Resilience to attacks", (), (), ("adversarial images", "poisoned training data")),
)  # fmt: skip

STANDARDS = (
    Item("ISO/IEC 42001, 9.1", "What is measured, by which methods, when, and with which result",
         (("metrics, settings and times", ""), ("limits and results", "policy"),
          ("paired differences to an earlier run", "baseline")), (CHECKS, IDENTITY, BASELINE),
         ("the management system around it",)),
    Item("ISO/IEC 42001, A.5.4", "Impact on individuals and groups", (_BY_GROUP,), (GROUPS,),
         ("the assessment of the impact itself",)),
    Item("ISO/IEC 42001, A.6.2.4", "Verification and validation: criteria, data and results",
         (("limits and results", "policy"), ("test images by digest", "")), (CHECKS, IDENTITY),
         ("requirements of the whole system",)),
    Item("ISO/IEC TS 6254", "Explainability: which explanations, and how good they are",
         (_FAITHFUL, ("maps that ignore the model beside them", "controls"),
          ("labels that are not predicted", "other_label_evidence"),
          ("whether maps depend on what the model has learned", "randomisation")), (FIGURES, RANDOM),
         ("whether people understand the explanations",)),
    Item("ISO/IEC TR 24029-1", "Robustness by statistical and empirical methods", (_EXCHANGED,), (EXAMINATION,),
         ("noise, light, view and attacks",)),
    Item("ISO/IEC 24029-2", "Robustness by formal methods", (), (), ("proofs",)),
    Item("FDA, performance", "What users should know: performance, also in groups", (_ACCURACY, _BY_GROUP),
         (FIGURES, GROUPS), ("clinical performance",)),
    Item("FDA, logic", "How an output was reached", (_FAITHFUL, _EXCHANGED), (FIGURES, EXAMINATION),
         ("how the model was developed",)),
    Item("FDA, limits", "Known limits, biases and gaps", (("limits of the claim, and what was not assessed", ""),
         _BY_GROUP), (LIMITS, GROUPS), ("who is informed, when and how",)),
)  # fmt: skip

TABLES = (
    ("Regulation (EU) 2024/1689 (AI Act), Annex IV, technical documentation", "Point", ANNEX_IV),
    ("Regulation (EU) 2024/1689 (AI Act), Articles 13 and 15", "Article", ARTICLES),
    ("NIST AI Risk Management Framework 1.0", "Subcategory", NIST),
    ("ISO/IEC standards, and FDA’s guiding principles for transparency of machine-learning devices", "Norm", STANDARDS),
)  # fmt: skip
NO_EVIDENCE = "none in this report"


def evidence(items: Iterable[Item], available: Collection[str]) -> list[Item]:
    """The items for a run that has the `available` parts: what it holds is named as evidence, the rest as missing."""
    supported = []
    for item in items:
        parts = tuple(part for part in item.evidence if not part[1] or part[1] in available)
        missing = (*(words for words, part in item.evidence if part and part not in available), *item.missing)
        links = tuple(link for link in item.sections if link[0] not in OPTIONAL or link[0] in available)
        supported.append(item._replace(evidence=parts or ((NO_EVIDENCE, ""),), sections=links if parts else (),
                                       missing=missing))  # fmt: skip
    return supported
