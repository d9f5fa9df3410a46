"""For consumers: how to form the next batch, as the agent on this host works it out from what it measures.

Nothing here loads BPF, NumPy or SciPy.
"""

from typing import TYPE_CHECKING

from agent.batch.feeds import FeedAligner, FeedGroup, FeedItem
from agent.batch.frames import Frame, FrameAssembler
from agent.batch.layout import Window
from agent.batch.waiting import BatcherFullError
from agent.batch.window import DEFAULT_WINDOW, BatchWindow

if TYPE_CHECKING:
    from agent.batch.asyncbatcher import AsyncBatcher
    from agent.batch.batcher import Batcher

__all__ = [
    "DEFAULT_WINDOW",
    "AsyncBatcher",
    "BatchWindow",
    "Batcher",
    "BatcherFullError",
    "FeedAligner",
    "FeedGroup",
    "FeedItem",
    "Frame",
    "FrameAssembler",
    "Window",
]


def __getattr__(name: str) -> object:
    """The batchers when they are asked for: asyncio costs more than all the rest, and the agent needs neither."""
    if name == "AsyncBatcher":
        from agent.batch.asyncbatcher import AsyncBatcher

        return AsyncBatcher
    if name == "Batcher":
        from agent.batch.batcher import Batcher

        return Batcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
