"""The background load, a process of its own: busy for a share of each period, on the CPU of the moment."""

from __future__ import annotations

import argparse
import json
import os
import time


def main() -> None:
    """Follow a schedule of [[from ns, until ns, CPU], …] (CLOCK_MONOTONIC), then end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", type=json.loads, required=True)
    parser.add_argument("--percent", type=int, required=True)
    parser.add_argument("--period-us", type=int, required=True)
    args = parser.parse_args()
    period_ns = 1_000 * args.period_us
    for begin_ns, until_ns, cpu in args.schedule:
        os.sched_setaffinity(0, {cpu})
        now_ns = time.monotonic_ns()
        if begin_ns > now_ns:
            time.sleep((begin_ns - now_ns) / 1e9)
        while (now_ns := time.monotonic_ns()) < until_ns:
            idle_at_ns = now_ns + period_ns * args.percent // 100
            while time.monotonic_ns() < idle_at_ns:
                pass
            time.sleep(period_ns * (100 - args.percent) / 100e9)


if __name__ == "__main__":
    main()
