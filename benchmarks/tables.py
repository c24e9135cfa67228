"""Results as Markdown: python -m benchmarks.tables benchmarks/results > benchmarks/README.md.

Every table comes from one file of results, which also says the machine, the versions and the command that made it.
"""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from auditkit.report.markdown import table
from benchmarks.calibration.randomisation import randomisation_table
from benchmarks.calibration.road import road_table
from benchmarks.calibration.rules import calibration_table
from benchmarks.calibration.simulation import simulation_table
from benchmarks.engines import engines_table
from benchmarks.examination_null import null_table
from benchmarks.examination_tables import blind_table, examination_table, models_table
from benchmarks.first_audit import first_audit_table
from benchmarks.frontier import frontier_table
from benchmarks.groups import groups_table
from benchmarks.label_specificity import specificity_table
from benchmarks.memory import memory_table
from benchmarks.paper.tables import findings
from benchmarks.paper.tables import markdown as of_paper
from benchmarks.paper.tables import told as share_text
from benchmarks.peers.tables import markdown as of_peers
from benchmarks.planted import planted_table
from benchmarks.record import record_table
from benchmarks.reproduction import reproduction_table
from benchmarks.scale import scale_table
from benchmarks.steps import steps_table
from benchmarks.two_objects import two_objects_table
from benchmarks.two_workers import two_workers_table
from benchmarks.zoo import zoo_table

Results = dict[str, Any]
HEAD = """# Measured

Made from `{0}/` by `python -m benchmarks.tables {0} > {1}/README.md`. `make bench`
runs the small ones on this machine's CPU, `make bench-gpu` those that need a GPU; both leave their results, and the
tables made of them, in `bench-output/`. Where a target is missed, the table shows it.
"""


def speed(found: Results) -> str:
    """Rows a second beside the bare session and, where they were run, beside torch loops."""
    rows = [[mode["device"], mode["precision"], f"{mode['bare_rows_s']:,.0f}", f"{mode['evaluate_rows_s']:,.0f}",
             f"{mode['ratio']:.3f}"] for mode in found["modes"]]  # fmt: skip
    head = ["device", "precision", "bare session, rows/s", "evaluate, rows/s", "ratio, median of turns"]
    text = [f"{found['model']}, {found['images']} images, {found['maps']} maps each, {found['steps']} points a curve.",
            table(head, rows)]  # fmt: skip
    if "times_peers" in found:
        rates = found["peers_rows_s"]
        peers = [[name, f"{rates[name]:,.0f}", f"{times:.1f}"] for name, times in found["times_peers"].items()]
        text.append(table(["on the same device, in torch (TF32)", "rows/s", "evaluate is times as fast"], peers))
    return "\n\n".join(text)


def learning(found: Results) -> str:
    """A step of mask learning beside torch."""
    peers = list(dict.fromkeys(peer for one in found["lines"] for peer in one["times_peers"]))
    rows = [
        [one["precision"], str(one["masks"]), str(one["pixels"]), f"{one['step']['auditkit']['ms']:.3g}",
         f"{one['rows_s']:,.0f}", *(f"{one['times_peers'].get(peer, float('nan')):.2f}" for peer in peers)]
        for one in found["lines"]
    ]  # fmt: skip
    head = [
        "precision",
        "masks",
        "pixels",
        "ms a step",
        "rows/s",
        *(f"× torch, {peer}" for peer in peers),
    ]
    return f"{found['network']}, {found['distractors']} distractors.\n\n{table(head, rows)}"


def kernels(found: Results) -> str:
    """Where a GPU's time goes."""
    kinds = list(found["lines"][0]["kinds_ms"])
    rows = [[one["what"], one["precision"], f"{one['rows']:,}", f"{one['ms']:.1f}", f"{one['rows_s']:,}",
             str(one["launches"]), *(f"{one['kinds_ms'][kind]:.1f}" for kind in kinds)]
            for one in found["lines"]]  # fmt: skip
    head = ["what", "precision", "rows", "ms by the clock", "rows/s", "kernels", *(f"ms of {kind}" for kind in kinds)]
    return "\n\n".join([f"{found['model']}.", table(head, rows), *_beside_compiled(found["lines"])])


def _beside_compiled(lines: list[Results]) -> list[str]:
    """In which kinds of kernels the bare session takes longer than the same network compiled by torch."""
    by = {(one["what"], one["precision"]): one for one in lines}
    told = []
    for what, precision in by:
        ours, theirs = (by.get((name, precision)) for name in ("bare session", "torch.compile"))
        if what == "bare session" and ours and theirs:
            apart = {kind: ms - theirs["kinds_ms"][kind] for kind, ms in ours["kinds_ms"].items()}
            listed = sorted((one for one in apart.items() if round(abs(one[1]), 1)), key=lambda one: -one[1])
            kinds = ", ".join(f"{ms:+.1f} of {kind}" for kind, ms in listed)
            told.append(
                f"The bare session less torch.compile, {precision}: {ours['ms'] - theirs['ms']:+.1f} ms; {kinds}."
            )
    return told


def opening(found: Results) -> str:
    """What opening a model costs."""
    rows = [[one["model"], f"{one['opening_s']:.2f}", f"{one['bare_rows_s']:,.0f}", f"{one['predict_rows_s']:,.0f}",
             f"{one['ratio']:.3f}"] for one in found["results"]]  # fmt: skip
    return table(["model", "seconds to open", "bare session, rows/s", "predict, rows/s", "ratio"], rows)


def linear(found: Results) -> str:
    """The linear theorem: shares at the lengths that it claims."""

    def share(one: Results | None) -> str:
        return "the length exceeds d" if one is None else share_text(one, ".3f")

    rows = [
        [f"{row['kind']}, margin {row['margin']:g}", f"{row['d']:,}", str(row["L1"]), str(row["L2"]),
         share(row["at_L1"] and row["at_L1"]["fixed"]), share(row["at_L2"] and row["at_L2"]["sound"])]
        for row in found["rows"]
    ]  # fmt: skip
    head = ["input", "d", "L1", "L2", "complete at L1", "sound at L2"]
    told = (
        f"Shares of {found['shuffles']:,} shuffles, at least {1 - found['delta']:.2f} is claimed: the first interval "
        "of length L1 certifies the label, and no interval of length L2 certifies the other one. `linear.py` "
        "says where the statement needs its appendix."
    )
    return f"{told}\n\n{table(head, rows)}"


def suite(found: Results) -> str:
    """Tests on a machine with a GPU."""
    rows = [[f"`{run['command']}`", str(run["tests"]), str(run["failures"]), str(run["skipped"])]
            for run in found["runs"]]  # fmt: skip
    failed = [f"{run['failed']}." for run in found["runs"] if run["failures"]]
    head = ["command", "tests", "failures", "skipped"]
    return "\n\n".join([f"{found['what'].capitalize()}.", table(head, rows), *failed])


def mutations(found: Results) -> str:
    """How the command ended on mutated files."""
    codes = ("0", "2", "4")
    rows = [[kind, f"{told['cases']:,}", *(f"{told['exit_codes'].get(code, 0):,}" for code in codes),
             str(told["by_command"]), str(told["decided_by_command"]), f"{told['sentences']:,}", str(told["problems"])]
            for kind, told in found["kinds"].items()]  # fmt: skip
    head = ["mutated", "cases", *(f"exit {code}" for code in codes), "also by the command", "decided by the command",
            "different sentences", "problems"]  # fmt: skip
    extremes = [f"{most['seconds']:.1f} s and {most['megabytes']:,} MB {how}"
                for how, most in (("in a fork", found["at_most"]["fork"]),
                                  ("by the command", found["at_most"]["command"]))]  # fmt: skip
    told = (
        "A problem is another exit code (4 is for a model that hangs, crashes or outgrows its worker), more or less "
        "than one line on stderr, a traceback, words of the runtime's own language, or too much memory. At most "
    )
    return f"{told}{', '.join(extremes)}.\n\n{table(head, rows)}"


def masks(found: Results) -> str:
    """Seconds for each learned mask."""
    rows = [[one["quality"], f"{one['masks']:,} of {one['planned']:,}", f"{one['seconds']:,.0f}",
             f"{one['seconds'] / one['masks']:.2f}", one["what"]] for one in found["lines"]]  # fmt: skip
    return table(["quality", "masks", "seconds", "seconds a mask", ""], rows)


# How a file's name begins, where several fit the longest: the title, and what draws it.
KINDS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "evaluate-": ("Scoring heatmaps against the bare session", speed),
    "engines-": ("What worker processes and Ray cost", engines_table),
    "two-workers-": ("Two workers on one GPU beside one", two_workers_table),
    "steps-": ("Points of a curve: `auto` and fixed numbers against every pixel", steps_table),
    "calibration": ("What `standard` says of honest maps, fakes and damaged maps", calibration_table),
    "calibration-simulation": ("How often a verdict is wrong, whenever one looks", simulation_table),
    "calibration-road": ("What the first check of `standard` says when hidden pixels are imputed", road_table),
    "calibration-randomisation": ("Maps of a model and of a copy that has forgotten everything", randomisation_table),
    "examination": ("What an examination says of models whose cue is known", examination_table),
    "examination-blind": ("What an examination says of networks of another make", blind_table),
    "examination-models": ("What an examination says of models in use", models_table),
    "examination-objects": ("Whether the evidence for a label carries it into other pictures", two_objects_table),
    "examination-null": ("How often an examination finds what is not there", null_table),
    "frontier": ("What a learned mask loses when it costs less", frontier_table),
    "label-specificity-": ("Honest methods and cheats in the cross-label matrix", specificity_table),
    "groups": ("Gaps between groups of images: how often one is shown", groups_table),
    "reproduction": ("How alike the maps of two devices, seeds, methods and models are", reproduction_table),
    "explain-": ("Learning masks", learning),
    "masks-": ("Masks of many images", masks),
    "kernels-": ("Where a GPU's time goes", kernels),
    "record": ("What keeping maps costs", record_table),
    "scale": ("What many images cost beside the model", scale_table),
    "first-audit": ("How long a first audit takes", first_audit_table),
    "memory-": ("What the verbs take of a GPU's memory", memory_table),
    "peers-": ("Peers on the same work", of_peers),
    "opening": ("Opening a model", opening),
    "paper-": ("The paper's tables", of_paper),
    "planted": ("Masks of images whose truth is known", planted_table),
    "zoo": ("A mask for every architecture", zoo_table),
    "linear": ("The paper's linear theorem", linear),
    "mutations": ("Mutated models, cards, policies, bundles and images", mutations),
    "gpu-suite": ("The test suite on a GPU", suite),
}


def markdown(folder: Path) -> str:
    """All results of a folder, in the order of KINDS, after what they say together of all claims."""
    parts, found = list[str](), list[tuple[str, Results]]()
    for start, (title, draw) in KINDS.items():
        for path in sorted(path for path in folder.glob(f"{start}*.json") if _kind(path.name) == start):
            results = json.loads(path.read_bytes())
            found += [(path.name, claim) for claim in results.pop("claims", [])]
            plots = [f"![{plot.stem}]({folder.name}/{plot.name})" for plot in sorted(folder.glob(f"{path.stem}*.svg"))]
            parts.append("\n\n".join([f"## {title} ({path.name})", _origin(results), draw(results), *plots]) + "\n")
    told = [f"## What is claimed, and what is seen\n\n{findings(found)}\n"] if found else []
    house = folder.absolute().parent.name
    return "\n".join([HEAD.format(f"{house}/{folder.name}", house), *told, *parts])


def _kind(name: str) -> str:
    """The key of KINDS that a file belongs to."""
    return max((start for start in KINDS if name.startswith(start)), key=len)


def _origin(found: Results) -> str:
    """Machine, versions and command of a result."""
    machine = found["machine"]
    devices = ", ".join(machine["cuda"]["devices"]) or "no GPU"
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("auditkit", "onnxruntime", "numpy"))
    told = [f"{machine['system']}, {machine['cores']} cores, {devices}; {versions}"]
    told += [str(found["date"])[:10]] if "date" in found else []
    told += [f"`{shlex.join(found['command'])}`"] if "command" in found else []
    return "; ".join(told) + "." + (f"\n\nNote: {found['note']}." if "note" in found else "")


if __name__ == "__main__":
    print(markdown(Path(sys.argv[1])), end="")
