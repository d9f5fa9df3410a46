"""FastAPI: requests of many clients, answered in batches.

uvicorn --factory tools.examples.fastapi_service:create_app
curl --data-binary @frame.raw http://127.0.0.1:8000/brightness
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from fastapi import FastAPI, Request

from agent.batch import AsyncBatcher, Window

STATE_DIR = Path("/run/agent")


def brightness(frames: list[bytes]) -> list[float]:
    """The model: mean brightness of each frame. A real one would stack them and run once."""
    return [float(np.frombuffer(frame, np.uint8).mean()) for frame in frames]


async def infer(frames: list[bytes]) -> list[tuple[float, int]]:
    """Run the model in a thread, so that requests go on arriving; each result with the size of its batch."""
    results = await asyncio.to_thread(brightness, frames)
    return [(result, len(frames)) for result in results]


def create_app(state_dir: Path = STATE_DIR) -> FastAPI:
    """The service; `state_dir` is the agent's."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Here, not outside: a batcher belongs to one event loop, and an app may be started more than once.
        default = Window(max_wait_us=5_000, max_items=16)
        async with AsyncBatcher(infer, default=default, state_dir=state_dir) as app.state.batcher:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/brightness")
    async def answer(request: Request) -> dict[str, float | int]:
        result = await app.state.batcher.submit(await request.body())
        return {"brightness": result[0], "batch": result[1]}

    return app
