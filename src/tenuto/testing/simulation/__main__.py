"""`python -m tenuto.testing.simulation --seeds N [--seed K] [--verbose]`."""

import argparse
import sys
import time
from dataclasses import asdict

from tenuto.testing.simulation import BrokenPromise, Figures, World


def main() -> int:
    """Run seeds; 1 when a promise broke in any of them."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description="Run the deterministic simulation.")
    parser.add_argument("--seeds", type=int, help="how many; 1000 if not said")
    parser.add_argument("--seed", type=int, help="the first one; without --seeds the only one")
    parser.add_argument("--verbose", action="store_true", help="print the whole trace of each seed")
    options = parser.parse_args()
    first = options.seed or 0
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds is at least 1: no seed checks nothing")
    count = options.seeds or (1000 if options.seed is None else 1)
    total, broken, started = Figures(), 0, time.perf_counter()
    for number, seed in enumerate(range(first, first + count), 1):
        world = World(seed)
        try:
            world.run()
        except KeyboardInterrupt:
            report(total, broken, started)
            return 130
        except BrokenPromise as error:
            broken += 1
            total.doubles += error.promise.startswith("2")
            total.losses += error.promise.startswith(("1", "no message"))
            write(f"{error}\n{''.join(error.__notes__)}\n  again: ./dev simulate --seed {seed} --verbose\n")
            total.seeds += 1
        else:
            total.add(world.figures)
        if options.verbose:
            write("\n".join(world.lines()))
        if number % 500 == 0 or number == count:
            report(total, broken, started)
    return 1 if broken else 0


def report(total: Figures, broken: int, started: float) -> None:
    """The figures of the seeds so far."""
    seconds = time.perf_counter() - started
    figures = ", ".join(f"{value} {name}" for name, value in asdict(total).items())
    write(f"{figures}; {broken} broken; {total.seeds / seconds:.0f} seeds/s")


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
