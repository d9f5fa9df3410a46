"""What a host can and cannot do for the agent: every check says what it found, why that matters, and what to do.

Nothing here writes: a check reads below roots that are parameters, or asks the kernel of this machine. A check that
cannot be made says so with its cause, it never fails the others.
"""

from agent.doctor.check import Check, Context, Finding, NotChecked, Severity, run_checks, worst

__all__ = ["Check", "Context", "Finding", "NotChecked", "Severity", "run_checks", "worst"]
