"""For consumers: how to form the next batch, as the agent on this host works it out from what it measures.

Nothing here loads BPF, NumPy or SciPy.
"""

from agent.batch.asyncbatcher import AsyncBatcher
from agent.batch.batcher import Batcher
from agent.batch.layout import Window
from agent.batch.waiting import BatcherFullError
from agent.batch.window import DEFAULT_WINDOW, BatchWindow

__all__ = ["DEFAULT_WINDOW", "AsyncBatcher", "BatchWindow", "Batcher", "BatcherFullError", "Window"]
