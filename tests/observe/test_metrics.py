"""Metrics, read with the Prometheus client's own parser and held against runs whose numbers are known."""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tenuto import Agent, AlreadyDecided, NotDone, Runtime, Settings, StoreError, tool
from tenuto.clock import FakeClock
from tenuto.errors import ConfigurationError, ModelError
from tenuto.events import ThreadId
from tenuto.messages import AttemptFailed, CallRequest, Reply, Request, ToolMessage, Usage
from tenuto.models.scripted import ScriptedModel, call
from tenuto.observe import Observe
from tenuto.observe.hold import Hold
from tenuto.rows import Claim
from tenuto.server import Access, create_app
from tenuto.store.sqlite import SQLiteStore

DOCS = Path(__file__).resolve().parents[2] / "docs" / "observability.md"


@tool(effect="read")
async def look(n: int) -> str:
    return str(n)


@tool(effect="idempotent")
async def fail(n: int) -> str:
    raise NotDone("no")


@tool(effect="once")
async def vanish(n: int) -> str:
    raise RuntimeError("the line broke off")


@tool(effect="once", approval=True)
async def pay(n: int) -> str:
    return f"paid {n}"


TOOLS = [look, fail, vanish, pay]


class Played:
    """Each story is known by the message that began it."""

    name = "played"

    async def reply(self, request: Request, emit: Any = None) -> Reply:
        task = next(m.text for m in request.messages if m.__struct_config__.tag == "user")
        done = [m for m in request.messages if isinstance(m, ToolMessage)]
        if task == "down":
            raise ModelError("down", retryable=False)
        if task == "shaky":
            emit(AttemptFailed("broke off", 0.0))
            emit(AttemptFailed("broke off again", 0.0))
        calls = {
            "look": [call("look", n=1), call("look", n=2)],
            "pay": [call("pay", n=1)],
            "fail": [call("fail", n=1), CallRequest("made_up_by_the_model", "{}")],
            "vanish": [call("vanish", n=1)],
        }.get(task, [])
        if calls and not done:
            return Reply(calls=tuple(calls), usage=Usage(input=100, output=10, cached=60, reasoning=4))
        return Reply(text="done", usage=Usage(input=7, output=3, cost=0.5))


class Scrape(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """Samples by name and labels."""

    @classmethod
    def of(cls, text: str, parse: Any = text_string_to_metric_families) -> "Scrape":
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in parse(text)
                for sample in family.samples
            }
        )

    def get_value(self, name: str, **labels: str) -> float:
        return self.get((f"tenuto_{name}", frozenset(labels.items())), 0.0)

    def total(self, name: str) -> float:
        return sum(value for (found, _), value in self.items() if found == f"tenuto_{name}")


@contextlib.asynccontextmanager
async def serving(place: Path, clock: FakeClock | None = None, access: Access | None = None, **observe: Any):
    store = SQLiteStore(f"{place}/t.db", clock=clock)
    looking = Observe(**({"metrics": True} | observe)) if observe != {"metrics": False} else None
    agent = Agent("ops", tools=TOOLS)
    async with Runtime([agent], database=store, model=Played(), observe=looking) as runtime:
        app = create_app(runtime, access or Access("s3cret"), agent="ops")
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield runtime, client


async def scrape(client: httpx2.AsyncClient) -> Scrape:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Scrape.of(response.text)


async def test_a_known_run_is_counted_exactly(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, client):
        for task in ("look", "look", "shaky", "down", "fail", "vanish", "pay", "pay", "pay"):
            await runtime.wait(await runtime.start("ops", task))
        first, second, third = [r for r in await runtime.interrupts() if r.kind == "approval"]
        outcomes = await asyncio.gather(
            runtime.resolve(first.id, "approve", by="ana"),
            runtime.resolve(first.id, "reject", by="bob"),
            return_exceptions=True,
        )
        assert [type(one) for one in outcomes].count(AlreadyDecided) == 1
        await runtime.resolve(second.id, "reject", by="ana")
        for row in (first, second):
            state = await runtime.wait(row.thread_id)
            assert state.status == "completed"
        # The log tells it first, and whoever wrote it counts then.
        async with asyncio.timeout(10):
            ended = 0.0
            while ended != 6:
                seen = await scrape(client)
                ended = seen.get_value("threads_ended_total", agent="ops", outcome="completed")

    assert seen.get_value("threads_started_total", agent="ops") == 9
    # look, look, shaky, fail, and the two that were decided; vanish waits for a review.
    assert seen.get_value("threads_ended_total", agent="ops", outcome="completed") == 6
    assert seen.get_value("threads_ended_total", agent="ops", outcome="failed") == 1
    # Two replies each for look, look, fail and two of pay, one for shaky, vanish and the third pay.
    assert seen.get_value("steps_total", agent="ops") == 5 * 2 + 3
    assert seen.get_value("model_seconds_count", model="played") == 13
    assert seen.get_value("model_failures_total", agent="ops") == 1
    assert seen.get_value("model_retries_total", agent="ops") == 2
    # Seven replies with calls, six without.
    assert seen.get_value("tokens_total", model="played", kind="input") == 7 * 100 + 6 * 7
    assert seen.get_value("tokens_total", model="played", kind="output") == 7 * 10 + 6 * 3
    assert seen.get_value("tokens_total", model="played", kind="cached") == 7 * 60
    assert seen.get_value("tokens_total", model="played", kind="reasoning") == 7 * 4
    assert seen.get_value("cost_total", model="played") == 6 * 0.5

    def calls(name: str, effect: str, outcome: str, by: str) -> float:
        return seen.get_value("tool_calls_total", tool=name, effect=effect, outcome=outcome, settled_by=by)

    assert calls("look", "read", "ok", "tool") == 4
    assert calls("fail", "idempotent", "error", "tool") == 1
    assert calls("(other)", "(other)", "error", "runtime") == 1
    approved = next(one for one in outcomes if not isinstance(one, Exception)).outcome == "approved"
    assert calls("pay", "once", "ok", "tool") == (1 if approved else 0)
    assert calls("pay", "once", "error", "person") == (1 if approved else 2)
    assert seen.total("tool_calls_total") == 4 + 2 + 2
    assert seen.get_value("tool_seconds_count", tool="look") == 4
    assert seen.get_value("tool_calls_in_doubt_total", tool="vanish") == 1

    assert seen.get_value("interrupts_raised_total", kind="approval") == 3
    assert seen.get_value("interrupts_raised_total", kind="review") == 1
    assert seen.total("interrupts_decided_total") == 2
    assert seen.get_value("interrupt_wait_seconds_count", kind="approval") == 2
    assert seen.get_value("interrupts_pending", kind="approval") == 1
    assert seen.get_value("interrupts_pending", kind="review") == 1
    assert seen.get_value("interrupts_pending", kind="question") == 0
    assert seen.get_value("append_refusals_total", reason="already_decided") == 1
    assert seen.get_value("leases_held") == 0
    assert seen.get_value("threads_runnable") == 0
    assert third.outcome is None


async def test_every_append_is_timed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, client):
        # start; reply with both results; reply with the end: each one commit.
        await runtime.wait(await runtime.start("ops", "look"))
        seen = await scrape(client)
    assert seen.get_value("append_seconds_count") == 3
    assert seen.get_value("append_seconds_sum") > 0
    assert seen.get_value("append_seconds_bucket", le="+Inf") == 3


async def test_ages_are_those_of_the_stores_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(tmp_path, clock) as (runtime, client):
        paid = await runtime.start("ops", "pay")
        await runtime.wait(paid)
        clock.advance(100)
        await runtime.wait(await runtime.start("ops", "pay"))
        clock.advance(20)
        # Of an agent that no worker here takes, and whose time has come.
        other = Runtime([Agent("idle")], database=runtime.store, settings=Settings(worker=False))
        await other.start("idle", "hello")
        clock.advance(7)
        seen = await scrape(client)
        assert seen.get_value("interrupts_pending", kind="approval") == 2
        assert seen.get_value("interrupt_oldest_seconds", kind="approval") == 127
        assert seen.get_value("threads_runnable") == 1
        assert seen.get_value("runnable_oldest_seconds") == 7
        (row, _) = await runtime.interrupts()
        await runtime.resolve(row.id, "approve", by="ana")
        await runtime.wait(paid)
        seen = await scrape(client)
        assert seen.get_value("interrupt_wait_seconds_sum", kind="approval") == 127
        assert seen.get_value("interrupts_decided_total", kind="approval", outcome="approved") == 1


async def test_what_came_too_late_is_an_expiry(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(tmp_path, clock) as (runtime, client):
        thread = await runtime.start("ops", "pay")
        state = await runtime.wait(thread)
        clock.advance(2 * 86_400)
        with pytest.raises(AlreadyDecided):
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(thread)).status == "completed"
        seen = await scrape(client)
    assert seen.get_value("interrupts_decided_total", kind="approval", outcome="expired") == 1
    assert seen.total("interrupts_decided_total") == 1


async def test_a_start_that_comes_twice_is_one_thread(tmp_path: Path) -> None:
    clock = FakeClock()
    async with serving(tmp_path, clock) as (runtime, client):
        for _ in range(3):
            thread = await runtime.start("ops", "hello", thread_id="3f2a5c1e-0000-4000-8000-000000000001")
            await runtime.wait(thread)
            clock.advance(5)
        seen = await scrape(client)
    assert seen.get_value("threads_started_total", agent="ops") == 1


async def test_labels_hold_nothing_that_a_client_made_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        thread = (await client.post("/v1/threads", json={"message": "hello"})).json()["id"]
        await client.get(f"/v1/threads/{thread}")
        await client.get(f"/v1/threads/{thread[:-1]}x")
        await client.get(f"/conjured/up/{thread}")
        await client.request("BREW", "/healthz")
        await client.post("/api/agent/tasks", json={"task": "hello"})
        response = await client.get("/metrics")
        seen = Scrape.of(response.text)
    assert thread[:13] not in response.text
    assert "conjured" not in response.text
    assert "BREW" not in response.text
    template = "/v1/threads/{thread_id}"
    assert seen.get_value("http_requests_total", method="GET", route=template, status="200") == 1
    assert seen.get_value("http_requests_total", method="GET", route=template, status="404") == 1
    assert seen.get_value("http_requests_total", method="GET", route="(other)", status="404") == 1
    assert seen.get_value("http_requests_total", method="POST", route="/api/agent/tasks", status="200") == 1
    assert seen.total("http_requests_total") == 6


async def test_who_may_not_read_sees_no_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path, access=Access("s3cret", "token")) as (_, client):
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.head("/metrics")).status_code == 401
        response = await client.get("/metrics", headers={"Authorization": "Bearer token"})
        assert response.status_code == 200
        # The refusal was an answer too.
        seen = Scrape.of(response.text)
        assert seen.get_value("http_requests_total", method="GET", route="/metrics", status="401") == 1


@pytest.mark.parametrize("version", ["", "; version=1.0.0"])
async def test_openmetrics_where_it_is_asked_for(tmp_path: Path, version: str) -> None:
    async with serving(tmp_path) as (runtime, client):
        await runtime.wait(await runtime.start("ops", "hello"))
        accept = {"Accept": f"application/openmetrics-text{version},text/plain;q=0.5"}
        response = await client.get("/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    assert "_created" not in response.text
    assert Scrape.of(response.text, openmetrics).get_value("threads_started_total", agent="ops") == 1


async def test_a_version_that_is_none_gets_plain_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        accept = {"Accept": "application/openmetrics-text; version=newest"}
        response = await client.get("/metrics", headers=accept)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "_total" in response.text
    assert "_created" not in response.text


async def test_a_store_that_does_not_answer_leaves_out_what_waits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (runtime, client):
        await runtime.wait(await runtime.start("ops", "pay"))

        async def down() -> Any:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(runtime.store._store, "waiting", down)  # type: ignore[attr-defined]  # it is watched
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert "tenuto_interrupts_pending" not in response.text
    assert Scrape.of(response.text).get_value("threads_started_total", agent="ops") == 1


async def test_the_store_is_asked_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("tenuto.observe.metrics.time.monotonic", lambda: now[0])
    async with serving(tmp_path) as (runtime, client):
        inner, asked = runtime.store._store, []  # type: ignore[attr-defined]  # it is watched
        real = inner.waiting

        async def counted() -> Any:
            asked.append(now[0])
            return await real()

        monkeypatch.setattr(inner, "waiting", counted)
        for at in (1000.0, 1000.5, 1000.9, 1001.0, 1001.5, 1002.1):
            now[0] = at
            await scrape(client)
    assert asked == [1000.0, 1001.0, 1002.1]


async def test_without_metrics_there_is_no_such_page(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=False) as (_, client):
        assert (await client.get("/metrics")).status_code == 404


async def test_a_registry_of_the_program_s_own(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    model = ScriptedModel(["done"])
    observe = Observe(metrics=registry)
    async with Runtime([Agent("ops")], f"sqlite:///{tmp_path}/t.db", model=model, observe=observe) as runtime:
        await runtime.wait(await runtime.start("ops", "go"))
    assert registry.get_sample_value("tenuto_threads_started_total", {"agent": "ops"}) == 1


async def test_a_lease_that_was_not_renewed_is_lost_and_one_given_back_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (runtime, client):
        mine, given_back = ThreadId("mine"), ThreadId("given back")

        async def renewed(owner: str, claims: Any, *, lease_seconds: float) -> dict[str, int]:
            return {"kept": 3}

        monkeypatch.setattr(runtime.store._store, "renew", renewed)  # type: ignore[attr-defined]  # it is watched
        assert runtime.observe
        hold = Hold(mine, runtime.agents["ops"], "w", None)
        runtime.observe.held.update({mine: hold, ThreadId("kept"): hold})
        claims = [Claim(thread, "ops", 1, 1) for thread in (mine, given_back, ThreadId("kept"))]
        await runtime.store.renew("w", claims, lease_seconds=15)
        seen = await scrape(client)
        assert seen.get_value("leases_held") == 2
        runtime.observe.held.clear()
    assert seen.get_value("leases_lost_total") == 1


async def test_a_slow_append_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenuto.limits.SLOW_APPEND_SECONDS", 0.0)
    async with serving(tmp_path) as (runtime, _):
        await runtime.wait(await runtime.start("ops", "hello"))
    assert [r.levelname for r in caplog.records if "an append took" in r.message] == ["WARNING"] * 2


def test_an_observe_belongs_to_one_runtime() -> None:
    observe = Observe()
    Runtime([], "sqlite://:memory:", observe=observe)
    with pytest.raises(ConfigurationError, match="make another one"):
        Runtime([], "sqlite://:memory:", observe=observe)


def test_the_page_in_docs_names_each_metric_with_its_kind_and_labels() -> None:
    written = {
        name: (kind, tuple(filter(None, labels.replace(" ", "").split(","))))
        for name, kind, labels in re.findall(
            r"^\| `(tenuto_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", DOCS.read_text(), re.MULTILINE
        )
    }
    registry = CollectorRegistry()
    Observe(metrics=registry)
    found = {}
    for collector in list(registry._collector_to_names):
        for family in collector.describe():
            labels = getattr(collector, "_labelnames", None)
            if labels is None:
                labels = tuple(family.samples[0].labels) if family.samples else ()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = (family.type, tuple(labels))
    assert found == written
