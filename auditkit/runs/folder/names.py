"""The names of what lies in a run's folder."""

RUN, RESULTS, LOCK = "run.json", "results.json", ".lock"
DAMAGED = ".damaged"  # the suffix of a part that cannot be used, until the run is finished
POLICY, MAPS, RANDOMISED, REPORT = "policy.toml", "maps", "randomised", "report.html"
COMMITMENT = "commitment.json"
STAMP = "commitment.tsr"  # a time stamp over it
EXAMINATION_RECORD = "examination.json"  # of `auditkit examine`
UNFINISHED, WAITING = "unfinished.npz", "waiting"  # in a bundle of maps that is being made
