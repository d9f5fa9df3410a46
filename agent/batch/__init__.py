"""For consumers: how to form the next batch, as the agent on this host works it out from what it measures.

Nothing here loads BPF, NumPy or SciPy.
"""

from agent.batch.layout import Window
from agent.batch.window import DEFAULT_WINDOW, BatchWindow

__all__ = ["DEFAULT_WINDOW", "BatchWindow", "Window"]
