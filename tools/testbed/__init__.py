"""Real packets with a known truth: namespaces, a stamping sender, a consumer and background load."""

from tools.testbed.namespace import Namespace, VethPair, sweep_stale
from tools.testbed.simphc import SimulatedPhc, Truth
from tools.testbed.testbed import Testbed

__all__ = ["Namespace", "SimulatedPhc", "Testbed", "Truth", "VethPair", "sweep_stale"]
