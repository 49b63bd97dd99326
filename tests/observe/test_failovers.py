"""What a fleet counts: takeovers, and what was left by workers that died."""

import asyncio
from pathlib import Path

from tenuto import Agent, Runtime, Settings
from tenuto.models.scripted import ScriptedModel
from tenuto.observe import Observe


async def test_a_thread_taken_over_from_a_dead_worker_is_a_failover(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/t.db"
    async with Runtime([Agent("ops")], database, settings=Settings(worker=False)) as other:
        thread = await other.start("ops", "go")
        assert await other.store.take("dead", thread, lease_seconds=0.001)
        await asyncio.sleep(0.01)
        assert (await other.store.waiting())["abandoned"][0] == 1
        observe = Observe(metrics=True)
        model = ScriptedModel(["done", "done"])
        async with Runtime([Agent("ops")], database, model=model, observe=observe) as runtime:
            await runtime.wait(thread, 10)
            await runtime.wait(await runtime.start("ops", "go"), 10)
            assert observe.metrics
            text = (await observe.metrics.render(runtime.store, ""))[0].decode()
    assert "tenuto_failovers_total 1.0" in text
    assert "tenuto_threads_abandoned 0.0" in text
    assert 'tenuto_step_seconds_count{agent="ops"} 2.0' in text
