"""Whether a run is what it says: unchanged, of these files, and computed anew with the same figures."""

from auditkit.verdict.verify.evidence import Trust
from auditkit.verdict.verify.originals import Originals
from auditkit.verdict.verify.verify import EXIT_CODES, Sampling, Verification, verify

__all__ = ["EXIT_CODES", "Originals", "Sampling", "Trust", "Verification", "verify"]
