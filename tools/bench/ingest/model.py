"""The detector: a small convolutional network with a wide head, made up of random weights.

The convolutions cost the same for each frame; the head's weights have to be fetched once a batch. So a batch has a
price of its own, and batching pays, as with detectors on accelerators.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agent.errors import UnsupportedError
from tools.bench.ingest.scenario import Model

_NEEDED = "pip install '.[bench]'"


def write(path: Path, model: Model, channels: int, height: int, width: int) -> None:
    """Write the network as ONNX: input uint8[n, channels, height, width] `frames`, output float32[n, k] `scores`.

    Raises `UnsupportedError` without the package `onnx`.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UnsupportedError("no model can be made: onnx is not installed", _NEEDED) from error
    random = np.random.default_rng(1)
    weights = []

    def weight(name: str, *shape: int) -> str:
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        data = (random.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(data, name))
        return name

    node = helper.make_node
    pool = [model.pool, model.pool]
    nodes = [
        node("Cast", ["frames"], ["floats"], to=TensorProto.FLOAT),
        node("AveragePool", ["floats"], ["x0"], kernel_shape=pool, strides=pool),
    ]
    depth = channels
    for layer in range(model.convolutions):
        kernel = weight(f"conv{layer}", model.filters, depth, 3, 3)
        nodes.append(node("Conv", [f"x{layer}", kernel], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"c{layer}"], [f"x{layer + 1}"]))
        depth = model.filters
    nodes.append(node("Flatten", [f"x{model.convolutions}"], ["h0"]))
    size = model.filters * (height // model.pool) * (width // model.pool)
    for layer, wide in enumerate(model.head):
        nodes.append(node("Gemm", [f"h{layer}", weight(f"head{layer}", wide, size)], [f"g{layer}"], transB=1))
        nodes.append(node("Relu", [f"g{layer}"], [f"h{layer + 1}"]))
        size = wide
    frames = helper.make_tensor_value_info("frames", TensorProto.UINT8, ["n", channels, height, width])
    scores = helper.make_tensor_value_info(f"h{len(model.head)}", TensorProto.FLOAT, ["n", size])
    graph = helper.make_graph(nodes, "detector", [frames], [scores], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())


class Detector:
    """The network, run by onnxruntime on one thread."""

    def __init__(self, path: Path, shape: tuple[int, int, int]) -> None:
        """Raises `UnsupportedError` without onnxruntime."""
        try:
            import onnxruntime
        except ImportError as error:
            raise UnsupportedError(
                "the model cannot be run: onnxruntime is not installed", _NEEDED
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._shape = shape

    def run(self, frames: list[bytes]) -> None:
        """Infer a batch of frames."""
        stacked = np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), *self._shape)
        self._session.run(None, {"frames": stacked})
