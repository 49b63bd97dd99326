"""Crashes, races and faults from seeds, while somebody looks on with everything: the promises still hold."""

from typing import Any

import pytest
from tests.observe.traced import Spans

from tenuto import Runtime
from tenuto.observe import Observe
from tenuto.testing.simulation import Figures, process, simulate

SEEDS = 20


def test_looking_on_breaks_no_promise(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    looking: list[Observe] = []

    def observed(*given: Any, **options: Any) -> Runtime:
        looking.append(Observe(metrics=True, traces=spans.provider, content=True))
        return Runtime(*given, observe=looking[-1], **options)

    monkeypatch.setattr(process, "Runtime", observed)
    total = Figures()
    for seed in range(10_000, 10_000 + SEEDS):
        total.add(simulate(seed).figures)
    assert (total.doubles, total.losses) == (0, 0)
    assert min(total.crashes, total.decisions, total.effects) > SEEDS
    # They did look: turns were traced, some of them linked to the ones before.
    turns = spans.all("invoke_agent")
    assert len(turns) > total.threads
    assert [turn for turn in turns if turn.links]
