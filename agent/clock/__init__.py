"""The clock: offset and drift of a hardware clock with bounds, jump tags, and the model for the kernel."""

from agent.clock.clock import Clock, ClockReport
from agent.clock.jumps import Tag
from agent.clock.model import ClockModel, ModelWriter
from agent.clock.track import Prediction

__all__ = ["Clock", "ClockModel", "ClockReport", "ModelWriter", "Prediction", "Tag"]
