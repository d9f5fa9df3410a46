"""What a packet of a frame carries in front of its part of the frame. Both ends are on one machine: host byte order."""

from __future__ import annotations

import struct

PORT = 24_000
HEAD = struct.Struct("=IHHq")
"""Number of the frame, index and count of the packet, when the frame was captured (ns of CLOCK_MONOTONIC)."""
