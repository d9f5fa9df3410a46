"""The telemetry stream as an output of the loop."""

from __future__ import annotations

from agent.telemetry.encode import pack
from agent.telemetry.schema import Frame, SinkHealth
from agent.telemetry.sink import DEFAULT_MAX_BYTES, Sink


class StreamOutput:
    """Packs frames into a sink; the counterpart of `StatusView` for pipes, files and sockets."""

    def __init__(self, fd: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Write to `fd`, which stays the caller's. Raises what `Sink` raises."""
        self._sink = Sink(fd, max_bytes)

    def put(self, frame: Frame, *, keep: bool = False) -> None:
        """Queue a frame; `keep` is for hello, which is never dropped."""
        self._sink.put(pack(frame), keep=keep)

    @property
    def closed_reason(self) -> str | None:
        """Why nobody reads any more; None while somebody does."""
        return self._sink.closed_reason

    def health(self) -> SinkHealth:
        """The sink's counts, for the health frame."""
        return self._sink.health()

    def close(self, timeout_s: float = 1.0) -> bool:
        """Write out what is queued, for at most `timeout_s`; whether everything got out."""
        return self._sink.close(timeout_s)


class NoOutput:
    """Takes frames and keeps none: for a run whose result is not its telemetry."""

    def put(self, frame: Frame, *, keep: bool = False) -> None:
        """Forget a frame."""

    @property
    def closed_reason(self) -> str | None:
        """It never closes."""
        return None

    def health(self) -> SinkHealth:
        """Nothing written, nothing dropped."""
        return {
            "written_frames": 0,
            "written_bytes": 0,
            "dropped_frames": 0,
            "dropped_bytes": 0,
            "queued_bytes": 0,
        }

    def close(self, timeout_s: float = 1.0) -> bool:
        """Nothing to finish."""
        return True
