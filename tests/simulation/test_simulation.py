"""A sample of seeds keeps every promise; a seed is repeatable; a broken promise can be read and replayed.

More seeds: `./dev simulate --seeds 10000`, or TENUTO_SEEDS=1000 for each part here.
"""

import os
import subprocess
import sys

import pytest

from tenuto.testing.simulation import BrokenPromise, Figures, World, simulate
from tenuto.testing.simulation.__main__ import main
from tenuto.thread import ThreadState

SEEDS = int(os.environ.get("TENUTO_SEEDS", "250"))
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_promises_hold(part: int) -> None:
    total = Figures()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        total.add(simulate(seed).figures)
    # The sample is worth something only if it did harm, to work that was going on.
    assert total.seeds == SEEDS
    assert min(total.crashes, total.zombies, total.refusals, total.decisions, total.effects) > SEEDS
    assert total.conflicts > SEEDS
    assert total.jumps > SEEDS / 10
    assert (total.doubles, total.losses) == (0, 0)


def test_a_seed_repeats_itself_to_the_letter() -> None:
    for seed in range(5):
        first, second = simulate(seed), simulate(seed)
        assert first.lines() == second.lines()
        assert first.digest() == second.digest()
        assert len(first.trace) > 50
    assert simulate(0).digest() != simulate(1).digest()


def test_a_seed_is_the_same_in_every_process() -> None:
    """Hashes of strings differ between processes: nothing may follow the order of a set."""
    work = "from tenuto.testing.simulation import simulate; print([simulate(s).digest() for s in range(25)])"
    said = {
        subprocess.run(
            [sys.executable, "-c", work],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(said) == 1


def test_a_broken_promise_names_seed_promise_and_last_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ThreadState, "open", property(lambda self: []))
    seed, broken = _first_broken(20)
    (note,) = broken.__notes__
    assert note.startswith(f"seed {seed}; the last steps:\n")
    assert "model_replied" in note
    assert str(broken).startswith(f"{broken.promise}: ")

    monkeypatch.setattr(sys, "argv", ["simulate", "--seed", str(seed)])
    assert main() == 1
    said = capsys.readouterr().out
    assert str(broken) in said
    assert f"./dev simulate --seed {seed} --verbose" in said
    assert "1 broken" in said


def _first_broken(seeds: int) -> tuple[int, BrokenPromise]:
    for seed in range(seeds):
        try:
            simulate(seed)
        except BrokenPromise as broken:
            return seed, broken
    pytest.fail("nothing was found")


def test_the_command_prints_figures_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", "--seeds", "3", "--seed", "7"])
    assert main() == 0
    said = capsys.readouterr().out
    assert said.startswith("3 seeds, ")
    assert " 0 doubles, 0 losses; 0 broken; " in said


def test_no_seed_is_no_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for seeds in ("0", "-1"):
        monkeypatch.setattr(sys, "argv", ["simulate", "--seeds", seeds])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "at least 1" in capsys.readouterr().err


def test_ctrl_c_gives_the_figures_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, seen = World.run, []

    def run(world: World) -> None:
        real(world)
        seen.append(world)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(World, "run", run)
    monkeypatch.setattr(sys, "argv", ["simulate", "--seeds", "9"])
    assert main() == 130
    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_the_trace_of_a_seed_tells_what_was_done() -> None:
    world = World(3)
    world.run()
    text = "\n".join(world.lines())
    for word in ("starts", "claim", "thread_started", "model_replied", "calm"):
        assert word in text
