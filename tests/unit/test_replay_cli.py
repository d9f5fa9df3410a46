"""`agent replay` as its user sees it: lines, summary, table, picture, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.cli import main
from agent.clock.estimator import Estimator, Sample
from tests.unit.captures import pcap, udp
from tests.unit.test_clock_cases import CASES
from tests.unit.test_replay_packets import stamped

HEADER = "local_ns,hw_ns,read_delay_ns"
TAGS = {
    "wrap", "bounce", "phase_step", "tai_utc", "freq_step", "stale", "missing", "epoch_unset", "outlier", "path_change",
}  # fmt: skip
START_NS = 10**13
EPOCH_NS = 1_790_000_000 * 10**9


def csv(n: int = 600, *, step_at: int = 400) -> str:
    """A PHC that is 12 ppm slow, read at 10 Hz with 20 ns of noise; it steps back by 250 µs; one sample is missing."""
    rng = np.random.default_rng(4)
    lines = [HEADER]
    for i in range(n):
        local = START_NS + i * 100_000_000
        hw = (
            EPOCH_NS
            + i * 100_000_000
            - i * 1200
            + round(rng.normal(0.0, 20.0))
            - (250_000 if i >= step_at else 0)
        )
        lines.append(f"{local},{'' if i == 50 else hw},1500")
    return "\n".join(lines) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The recording of `csv`."""
    path = tmp_path / "phc.csv"
    path.write_text(csv())
    return path


def lines(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What `agent replay --json` prints."""
    assert main(["replay", "--json", *arguments]) == code
    return [json.loads(line, parse_constant=_no_constant) for line in capsys.readouterr().out.splitlines()]


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def test_one_line_a_sample_and_a_summary(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key that is promised, in order; offsets to the nanosecond; tags where they belong."""
    *rows, last = lines(capsys, str(file))
    assert [row["i"] for row in rows] == list(range(600))
    keys = "i local_ns offset_ns drift_ppb sigma_ns bound_ns state tag cause weight predict"
    assert all(list(row) == keys.split() for row in rows)
    assert {i: row["tag"] for i, row in enumerate(rows) if row["tag"]} == {50: "missing", 400: "phase_step"}
    assert list(rows[-1]["predict"]) == ["0.001", "0.01", "0.1", "1", "10", "60"]
    truth = START_NS - EPOCH_NS + 599 * 1200 + 250_000
    assert abs(rows[-1]["offset_ns"] - truth) < rows[-1]["bound_ns"]
    assert abs(rows[-1]["predict"]["10"]["offset_ns"] - truth - 120_000) < rows[-1]["predict"]["10"]["p99_ns"]
    assert {row["state"] for row in rows} == {"init", "tracking"}
    summary = last["summary"]
    assert summary["samples"] == 600
    assert summary["accepted"] == 599
    assert set(summary["tags"]) == TAGS
    assert summary["timescale"] == "unknown"
    assert {h for h, figures in summary["horizons"].items() if figures["mixture"]["n"]} == {
        "0.1",
        "1",
        "10",
    }
    second = summary["horizons"]["1"]
    assert second["mixture"]["rmse_ns"] < 30.0
    assert second["mixture"]["coverage"] > 0.97
    assert set(second["experts"]) >= {"hold", "alr", "kalman2", "kalman3", "rls"}
    for figures in (second["mixture"], *second["experts"].values()):
        assert {"n", "rmse_ns", "p99_ns", "tdev_ns", "mtie_ns"} <= set(figures)
    assert summary["offset"]["rate_ppb"] == pytest.approx(12_000, abs=20)
    assert summary["offset"]["tdev_ns"]["0.1"] == pytest.approx(20.0, rel=0.2)


def test_the_lstm_is_among_the_experts_where_it_is_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary has its errors as it has any expert's; without --experts it takes no part."""
    *_, last = lines(capsys, str(file), "--experts", "kalman2,kalman3,lstm")
    second = last["summary"]["horizons"]["1"]["experts"]
    assert set(second) == {"kalman2", "kalman3", "lstm"}
    assert second["lstm"]["rmse_ns"] < 30.0
    assert second["lstm"]["n"] > 500
    *_, last = lines(capsys, str(file))
    assert "lstm" not in last["summary"]["horizons"]["1"]["experts"]


@pytest.mark.skipif(not CASES, reason="clock.json is not beside this checkout (../shared/cases)")
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_cases_give_the_estimators_verdicts(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every shared case, written as CSV, gives the tags, weights and time scale of the samples fed directly."""
    samples = next(v for k, v in case.items() if k != "columns" and isinstance(v, list))
    text = f"# local={case['local_clock']}\n{','.join(case['columns'])}\n"
    text += "".join(",".join("" if v is None else str(v) for v in sample) + "\n" for sample in samples)
    path = tmp_path / "case.csv"
    path.write_text(text)
    *rows, last = lines(capsys, str(path))
    estimator = Estimator(local_is_realtime=case["local_clock"] == "realtime")
    verdicts = [
        verdict
        for sample in samples
        for verdict in estimator.update(Sample(**dict(zip(case["columns"], sample, strict=True))))
    ] + estimator.flush()
    verdicts.sort(key=lambda verdict: verdict.index)
    assert [(row["tag"], row["cause"]) for row in rows] == [(v.kind, v.cause) for v in verdicts]
    assert last["summary"]["timescale"] == estimator.timescale
    if "state_end" in case["expect"]:
        assert rows[-1]["state"] == case["expect"]["state_end"]


def test_a_prediction_uses_nothing_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut off the rest of the file: the rows that were final before say the same."""
    whole = csv()
    rows = []
    for n in (300, 600):
        path = tmp_path / "part.csv"
        path.write_text("".join(whole.splitlines(keepends=True)[: n + 1]))
        rows.append(lines(capsys, str(path))[:290])
    assert rows[0] == rows[1]


def test_horizons_and_experts_are_chosen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only those that were asked for take part."""
    *rows, last = lines(capsys, str(file), "--horizons", "0.5,30", "--experts", "hold,kalman3")
    assert list(rows[-1]["predict"]) == ["0.5", "30"]
    assert {name: set(h["experts"]) for name, h in last["summary"]["horizons"].items()} == {
        "0.5": {"hold", "kalman3"},
        "30": {"hold", "kalman3"},
    }


def test_clocks_of_one_file_are_replayed_apart(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clocks, interleaved, give the lines that each gives alone; the summary has both."""
    body = file.read_text().splitlines()[1:]
    other = [line.replace(line.split(",")[0], str(int(line.split(",")[0]) + 7)) for line in body[:200]]
    merged = sorted(
        [f"{line},1" for line in body] + [f"{line},2" for line in other], key=lambda x: int(x.split(",")[0])
    )
    both = tmp_path / "both.csv"
    both.write_text("\n".join([f"{HEADER},hw_clock", *merged]))
    *alone, _ = lines(capsys, str(file))
    *rows, last = lines(capsys, str(both))
    assert sorted(row["i"] for row in rows) == list(range(800))
    first = [{k: v for k, v in row.items() if k not in ("i", "clock")} for row in rows if row["clock"] == "1"]
    assert first == [{k: v for k, v in row.items() if k != "i"} for row in alone]
    assert [(c["clock"], c["samples"]) for c in last["summary"]["clocks"]] == [("1", 600), ("2", 200)]
    assert last["summary"]["samples"] == 800


def test_without_json_there_is_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, stability, and a line for each horizon; those that can't be scored say why."""
    assert main(["replay", str(file)]) == 0
    text = capsys.readouterr().out
    assert "600 samples over 59.9 s, 599 in the estimate" in text
    assert "phase_step 1, missing 1" in text
    assert "TDEV" in text
    assert "0.001 s          0  samples are too far apart" in text
    assert any(line.split()[:2] == ["10", "s"] and line.rstrip().endswith("%") for line in text.splitlines())


def test_a_bad_line_ends_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows before it are out, no summary of half a file is given, the line and the remedy are told."""
    path = tmp_path / "bad.csv"
    path.write_text(csv(100) + "1.7e18,2,3\n")
    assert main(["replay", "--json", str(path)]) == 2
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert 90 < len(rows) <= 100
    assert "summary" not in rows[-1]
    assert 'line 102: local_ns is "1.7e18", not an integer' in said.err
    assert "remedy: " in said.err


def test_a_cut_capture_ends_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is whole is summed up all the same."""
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap(list(stamped(2.0)))[:-3])
    last = lines(capsys, str(path), code=5)[-1]["summary"]
    assert (last["kind"], last["stamps"]) == ("pcap", "metamako")
    assert last["packets"] > 1000


@pytest.mark.parametrize(
    ("content", "arguments", "what"),
    [
        (None, [], "No such file"),
        (b"", [], "line 1: the file is empty"),
        (b"\x1f\x8b\x08", [], "packed (gzip)"),
        (pcap([(EPOCH_NS, udp())]), [], "no known time stamp"),
        (csv(5).encode(), ["--horizons", "1,x"], "not numbers"),
        (csv(5).encode(), ["--horizons", "0"], "outside"),
        (csv(5).encode(), ["--horizons", "nan"], "outside"),
        (csv(5).encode(), ["--horizons", "10,1"], "ascend"),
        (csv(5).encode(), ["--horizons", "1.0000001,1.0000002"], "alike in six digits"),
        (csv(5).encode(), ["--base-delay-ns", "5"], "--base-delay-ns is for captures"),
        (csv(5).encode(), ["--experts", "guess,kalman3"], "no such expert: guess"),
        (csv(5).encode(), ["--plot", "x.pdf"], "only PNG"),
        (csv(5).encode(), ["--plot", "/nowhere/x.png"], "can't be written"),
    ],
)
def test_what_cannot_be_done_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, arguments: list[str], what: str
) -> None:
    """One error on stderr with its remedy, nothing on stdout."""
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path), *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert what in said.err
    assert "remedy: " in said.err


def test_a_directory_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, with what is wanted instead."""
    assert main(["replay", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_plot_draws_a_picture(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG of offset, tags and the horizons that were scored: one panel each."""
    image = pytest.importorskip("matplotlib.image")
    target = tmp_path / "phc.png"
    assert main(["replay", str(file), "--plot", str(target)]) == 0
    picture = image.imread(str(target))
    height, width, _ = picture.shape
    assert width == 1100
    assert height == round(110 * (3.4 + 1.7 * 3))
    for colour in ("#0072B2", "#D55E00"):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (np.abs(picture[:, :, :3] - rgb).max(axis=2) < 0.02).any()


def test_names_are_drawn_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file's name is no mathematics, and may hold bytes that are no text."""
    pytest.importorskip("matplotlib")
    for name in ("$\\frac{$.csv", "\udcff.csv"):
        path = tmp_path / name
        path.write_text(csv(20))
        assert main(["replay", str(path), "--plot", str(tmp_path / "x.png")]) == 0
    assert main(["replay", str(path), "--plot", str(tmp_path)]) == 2


def test_a_file_that_cannot_be_read_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the recording that is named, not standard output."""
    assert main(["replay", "/proc/self/mem"]) == 2
    assert "cannot read /proc/self/mem on: Input/output error" in capsys.readouterr().err


def test_a_dash_is_standard_input() -> None:
    """What is piped in is replayed like a file; a wrong line is told as that of "-"."""
    command = [sys.executable, "-m", "agent", "replay", "--json", "-"]
    done = subprocess.run(command, input=csv(60), capture_output=True, text=True, check=True)
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert len(rows) == 60
    assert last["summary"]["file"] == "-"
    done = subprocess.run(command, input=csv(3) + "x\n", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "-, line 5" in done.stderr


def test_a_pipe_is_known_by_its_first_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However few of them come at first."""
    data = pcap(list(stamped(1.0)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            for byte in data[:30]:
                file.write(bytes((byte,)))
                time.sleep(0.001)
            file.write(data[30:])

    writer = threading.Thread(target=write)
    writer.start()
    last = lines(capsys, str(pipe))[-1]["summary"]
    writer.join()
    assert last["kind"] == "pcap"


@pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e-3, 2.0, 1e5])
@pytest.mark.parametrize("every_ns", [10**6, 10**9, 10**11])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_clock_in_another_unit_is_replayed(
    rate: float, every_ns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hardware clock that counts µs or ps, or hardly at all: figures as bad as the clock, but figures."""
    rows = [(START_NS + i * every_ns, 10**17 + round(i * every_ns * rate)) for i in range(100)]
    path = tmp_path / "unit.csv"
    path.write_text(HEADER + "\n" + "".join(f"{a},{b},1500\n" for a, b in rows if b < 1 << 62))
    *replayed, _ = lines(capsys, str(path))
    assert all(abs(h["offset_ns"]) < 1 << 62 for row in replayed for h in row["predict"].values())


def test_plot_without_matplotlib_says_how_to_get_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the replay, not after it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["replay", str(file), "--plot", str(tmp_path / "x.png")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert ".venv/bin/pip install '.[plot]'" in said.err


def test_a_strip_keeps_every_peak() -> None:
    """However long the series, a picture shows its extremes, in bounded memory."""
    from agent.replay.plot import Strip

    strip = Strip()
    for i in range(100_000):
        strip.add(i, 50.0 if i == 77_777 else -9.0 if i == 5 else 0.0)
    assert len(strip) <= 4096
    _, low, high, _, _ = strip.table()
    assert (np.nanmin(low), np.nanmax(high)) == (-9.0, 50.0)
