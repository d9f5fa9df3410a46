"""Flask: a thread a request, and one that runs the model on batches of them.

flask --app tools.examples.flask_service run
curl --data-binary @frame.raw http://127.0.0.1:5000/brightness
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flask import Flask, request

from agent.batch import Batcher, Window

STATE_DIR = Path("/run/agent")


def infer(frames: list[bytes]) -> list[tuple[float, int]]:
    """The model: mean brightness of each frame, with the size of its batch. A real one stacks them and runs once."""
    return [(float(np.frombuffer(frame, np.uint8).mean()), len(frames)) for frame in frames]


def create_app(state_dir: Path = STATE_DIR) -> Flask:
    """The service; `state_dir` is the agent's."""
    batcher = Batcher(infer, default=Window(max_wait_us=5_000, max_items=16), state_dir=state_dir)
    app = Flask(__name__)

    @app.post("/brightness")
    def answer() -> dict[str, float | int]:
        result = batcher.submit(request.get_data()).result()
        assert result is not None
        return {"brightness": result[0], "batch": result[1]}

    return app
