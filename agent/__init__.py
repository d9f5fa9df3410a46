"""An eBPF-backed capture agent: measure per packet, predict, act, measure the effect, undo."""

__version__ = "0.1.0"
