"""`agent` as the tests in the guest run it, whose CPUs are 14 times slower than any that it is meant for.

Its degrade ladder would step down within seconds, and look at ever fewer packets: here it may use all CPUs, and its
ticks may be late. All else is the agent.
"""

from __future__ import annotations

import sys

from agent.cli import main
from agent.control.degrade import Budget, DegradeLadder

if __name__ == "__main__":
    if "run" in sys.argv[1:2]:
        from agent import loop

        vars(loop)["DegradeLadder"] = lambda: DegradeLadder(Budget(cpu_percent=400.0, overruns=1.0))
    sys.exit(main())
