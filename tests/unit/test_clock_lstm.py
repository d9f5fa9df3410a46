"""The clock's learned expert: its cell against known values, its weights' file, its readout that adapts."""

from __future__ import annotations

import io
from math import exp, sqrt, tanh
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent.clock import lstm
from agent.clock.forecast import EXPERTS, HORIZONS_S, Mixture
from agent.clock.lstm import FEATURES, HIDDEN, INPUTS, KNOT_STEPS, Inputs, Lstm, Weights, knot_parts, unpack
from agent.errors import UnsupportedError
from tests.unit.clock_core import Bank, Noise, begin, forecast, learn, score

Floats = npt.NDArray[np.float64]

GATES = 4 * HIDDEN


def drawn_weights(seed: int = 1) -> Weights:
    """Some weights, exact in single precision."""
    random = np.random.default_rng(seed)
    shapes = ((GATES, len(INPUTS) + HIDDEN), (GATES,), (len(KNOT_STEPS), FEATURES))
    return Weights(
        *[random.normal(0.0, 0.3, shape).astype(np.float32).astype(np.float64) for shape in shapes]
    )


def drawn_samples(count: int) -> list[tuple[float, float, float, float, bool]]:
    """What a mixture would tell of samples at about 10 Hz, one of which jumped."""
    random = np.random.default_rng(2)
    time_s = np.cumsum(random.uniform(0.08, 0.12, count)).tolist()
    sigma = np.exp(random.normal(3.0, 0.3, count)).tolist()
    off = random.normal(0.0, 20.0, count).tolist()
    return [(time_s[i], off[i], sigma[i], 1.0, i == count // 2) for i in range(count)]


# ---- the cell --------------------------------------------------------------------------------------------------


def test_a_cell_of_biases_gives_the_values_worked_out_by_hand() -> None:
    """All gates half open, 1 at the cell's gate: c = tanh(1)/2, then 3/4 tanh(1); h = tanh(c)/2."""
    bias = np.zeros(GATES)
    bias[2 * HIDDEN : 3 * HIDDEN] = 1.0
    cell = Lstm(Weights(np.zeros((GATES, len(INPUTS) + HIDDEN)), bias, np.zeros((len(KNOT_STEPS), FEATURES))))
    hidden = []
    for i in range(2):
        cell.observe(float(i), 0.0, 1.0, 1.0, False)
        hidden.append(cell.features()[:HIDDEN].copy())
    # tanh(1) = 0.761594, tanh(0.380797) = 0.363399, tanh(0.571196) = 0.516276.
    np.testing.assert_allclose(hidden[0], 0.181700, atol=1e-5)
    np.testing.assert_allclose(hidden[1], 0.258138, atol=1e-4)


def test_the_cell_equals_its_formulas_written_out() -> None:
    """i, f, o = sigmoid, g = tanh; c = f c + i g; h = o tanh(c): unit by unit, over 50 samples."""
    weights = drawn_weights()
    network, inputs = Lstm(weights), Inputs()
    hidden, memory = [0.0] * HIDDEN, [0.0] * HIDDEN
    for sample in drawn_samples(50):
        network.observe(*sample)
        seen = [*inputs.take(*sample), *hidden]
        sums = [
            sum(w * s for w, s in zip(row, seen, strict=True)) + b
            for row, b in zip(weights.cell.tolist(), weights.bias.tolist(), strict=True)
        ]
        for unit in range(HIDDEN):
            let_in, keep, show = (1.0 / (1.0 + exp(-sums[gate * HIDDEN + unit])) for gate in (0, 1, 3))
            memory[unit] = keep * memory[unit] + let_in * tanh(sums[2 * HIDDEN + unit])
            hidden[unit] = show * tanh(memory[unit])
        np.testing.assert_allclose(network.features(), [*hidden, 1.0], atol=1e-12)


def test_the_cell_and_readout_equal_pytorch() -> None:
    """The training's network in PyTorch, loaded with the same weights, says the same corrections."""
    torch = pytest.importorskip("torch", reason="PyTorch is installed by `make train` only")
    from tools.training.network import network_of

    weights = drawn_weights()
    network, inputs = Lstm(weights), Inputs()
    seen, said, parts = [], [], []
    for sample in drawn_samples(50):
        network.observe(*sample)
        seen.append(inputs.take(*sample))
        # The reader renews what knots count only when the interval has moved by a tenth.
        said.append(network.predict((1e-6, 1e9)))
        parts.append(knot_parts(np.array([1.0, KNOT_STEPS[-1]])))
    with torch.no_grad():
        expected = network_of(weights)(
            torch.tensor([seen], dtype=torch.float64), torch.tensor(np.array([parts]))
        )[0]
    np.testing.assert_allclose(said[1:], expected[1:], atol=1e-10)


def test_inputs_do_not_depend_on_units() -> None:
    """A clock that is a thousand times worse and read at a hundredth of the rate looks the same."""
    one, other = Inputs(), Inputs()
    for time_s, off, sigma, weight, jump in drawn_samples(50):
        seen = one.take(time_s, off, sigma, weight, jump)
        assert other.take(100 * time_s, 1000 * off, 1000 * sigma, weight, jump) == pytest.approx(
            seen, abs=1e-9
        )


def test_inputs_are_bounded_whatever_comes() -> None:
    """A pause of a day, a sigma from another world, a jump."""
    inputs = Inputs()
    inputs.take(0.0, 0.0, 1.0, 1.0, False)
    inputs.take(0.1, 0.0, 1.0, 1.0, False)
    for sample in (
        (86_400.0, 1e15, 1e-3, 0.0, False),
        (86_401.0, 0.0, 1e15, 1.0, True),
        (86_402.0, -1e9, 1e9, 1.0, False),
    ):
        assert np.abs(inputs.take(*sample)).max() <= 6.0


@pytest.mark.parametrize(
    ("steps", "parts"),
    [
        (1.0, [1, 0, 0, 0]),
        (10.0, [0, 1, 0, 0]),
        (sqrt(10.0) * 10, [0, 0.5, 0.5, 0]),
        (1e-3, [1, 0, 0, 0]),
        (1e6, [0, 0, 0, 1]),
    ],
)
def test_a_horizon_lies_between_its_knots(steps: float, parts: list[float]) -> None:
    """Linear in the logarithm between knots, and the outermost beyond them."""
    np.testing.assert_allclose(knot_parts(np.array(steps)), parts, atol=1e-12)


def test_a_restored_state_goes_on_as_before() -> None:
    """What was observed after `save` leaves no trace."""
    network = Lstm(drawn_weights())
    samples = drawn_samples(20)
    for sample in samples[:10]:
        network.observe(*sample)
    state = network.save()
    network.observe(*samples[10])
    expected = network.features().copy()
    for sample in samples[11:]:
        network.observe(*sample)
    network.restore(state)
    network.observe(*samples[10])
    np.testing.assert_array_equal(network.features(), expected)


# ---- the weights' file -----------------------------------------------------------------------------------------


def test_packed_weights_come_back() -> None:
    """All tables, to the bit."""
    weights = drawn_weights()
    again = unpack(weights.pack(), "some.npz")
    for name in ("cell", "bias", "readout"):
        np.testing.assert_array_equal(getattr(again, name), getattr(weights, name))


def test_the_agents_own_weights_are_small_and_whole() -> None:
    """Less than 100 KB, and they load."""
    path = Path(lstm.__file__).with_name("lstm.npz")
    assert path.stat().st_size < 100_000
    assert np.isfinite(unpack(path.read_bytes(), path.name).cell).all()


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _without_digest(content: bytes) -> bytes:
    return content.replace(b"digest.npy", b"tsegid.npy")


def _changed(content: bytes, **figures: npt.NDArray[Any]) -> bytes:
    with np.load(io.BytesIO(content)) as archive:
        arrays = dict(archive) | figures
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _other_figures(content: bytes) -> bytes:
    """The digest is that of others."""
    return _changed(content, bias=np.ones(GATES, dtype=np.float32))


def _other_shape(content: bytes) -> bytes:
    return _changed(content, bias=np.ones(3, dtype=np.float32))


def _other_version(content: bytes) -> bytes:
    return _changed(content, version=np.array(99))


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda _: b"no archive", _truncated, _without_digest, _other_figures, _other_version],
)
def test_damaged_weights_are_refused(damage: Any) -> None:
    """Empty, something else, cut off, without digest, other figures, another shape or version: cause, name, remedy."""
    with pytest.raises(UnsupportedError, match=r"some\.npz") as refused:
        unpack(damage(drawn_weights().pack()), "some.npz")
    assert "make train" in refused.value.remedy


def test_any_flipped_byte_is_refused_or_harmless() -> None:
    """Either the loader says so, or the figures are what they were (a byte of the archive's own book-keeping)."""
    weights = drawn_weights()
    content = weights.pack()
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 0x55
        try:
            loaded = unpack(bytes(flipped), "some.npz")
        except UnsupportedError:
            continue
        assert loaded.digest() == weights.digest()


# ---- the readout -----------------------------------------------------------------------------------------------


class FakeRecurrent:
    """Two features that it is told, a trained readout that knows nothing."""

    def __init__(self) -> None:
        self.now = np.zeros(FEATURES)

    def start(self) -> None:
        self.now[:] = 0.0

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        self.now[:2] = innovation_ns, weight

    def features(self) -> Floats:
        return self.now

    def predict(self, horizons_s: tuple[float, ...]) -> Floats:
        return np.zeros(len(horizons_s))

    def save(self) -> Floats:
        return self.now.copy()

    def restore(self, state: Floats) -> None:
        self.now[:] = state


def test_the_readout_learns_a_linear_relation() -> None:
    """The next sample is off the bank's forecast by 0.8 a - 0.4 b sigmas: after 2,000 of them it is foreseen so."""
    random = np.random.default_rng(5)
    recurrent = FakeRecurrent()
    bank, mixture = Bank(), Mixture((1.0,), ("kalman2", "kalman3", "lstm"), recurrent)
    bank.start(0.0, 0.0, 100.0)
    begin(mixture)
    learn(mixture, bank, 0.0)
    a = b = 0.0
    errors, bare = [], []
    for i in range(1, 2_500):
        mean, var = bank.forecast(1.0)
        offset = mean + (0.8 * a - 0.4 * b) * sqrt(var)
        if i > 2_000:
            told = forecast(mixture, bank, float(i - 1))
            errors.append((float(told.expert_offset_ns[0, -1]) - offset) / sqrt(var))
            bare.append(0.8 * a - 0.4 * b)
        bank.advance(float(i))
        score(mixture, float(i), offset, 1.0)
        bank.update(offset, Noise(100.0))
        a, b = random.choice([-1.0, 1.0], 2).tolist()
        mixture.observe(float(i), a, 1.0, b, False)
        learn(mixture, bank, offset)
    assert np.std(errors) < 0.25 * np.std(bare)


def test_the_lstm_is_heard_only_where_it_is_named() -> None:
    """Not among the standard experts; among those named."""
    assert "lstm" not in Mixture().experts
    assert Mixture(HORIZONS_S, EXPERTS).experts == EXPERTS
