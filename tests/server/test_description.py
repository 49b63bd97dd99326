"""The OpenAPI description against a real server: requests made from it, right and wrong ones, by every role.

Every answer has to be one that is described, in status, media type, headers and body; no request is the
server's fault; what the description forbids is refused, and what it allows is taken. The seed is fixed.
"""

import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

ROOT = Path(__file__).resolve().parents[2]
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE

# What a description cannot say: these depend on what there is, or on two fields together.
DEPENDS = re.compile(
    "does not decide an interrupt of kind|needs the new arguments|arguments go with|an answer goes with"
    "|answer is blank|editing .* needs agent|no agent .* here|there is no event|Last-Event-ID is not the seq"
    "|an admin makes tokens|is the name of a secret"
    "|Expected `int`, got `float`"  # of JSON's two ways to write a whole number one is taken
)


@dataclass
class Served:
    """A server with some threads in it, and the tokens of its users."""

    url: str
    tokens: dict[str, str]
    threads: list[str] = field(default_factory=list)
    interrupts: list[str] = field(default_factory=list)

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"} if name else {}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    environment = {"PATH": os.environ["PATH"], "TENUTO_DATABASE": f"sqlite:///{place}/tenuto.db"}
    environment |= {
        "APPROVER_SECRET": "s3cret-of-ana",
        "SUBMIT_TOKEN": "token-of-bob",
        "SENT": f"{place}/sent",
    }

    def tenuto(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "tenuto", *arguments]

    tokens = {"APPROVER_SECRET": "s3cret-of-ana", "SUBMIT_TOKEN": "token-of-bob", "nobody": "tnt_" + "x" * 43}
    made = subprocess.run(
        tenuto("token", "create", "admin", "--role", "admin"),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    tokens["admin"] = made.stdout.strip()
    log = (place / "log").open("w")
    command = tenuto("serve", "tests.cli.desk:agents", "--port", "0")
    with (
        log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, (place / "log").read_text()
            served = Served(found.group(), tokens)
            with httpx2.Client(base_url=served.url, headers=served.headers("admin"), timeout=60) as client:
                for name in ("submit", "read", "approve", "scoped"):
                    wanted = {"name": name, "roles": [name]}
                    if name == "scoped":
                        wanted |= {"roles": ["submit", "read"], "agents": ["other"]}
                    tokens[name] = client.post("/v1/tokens", json=wanted).json()["token"]
                for message in ("hello", "send hi", "ask what?", "fail x"):
                    post = client.post(
                        "/v1/threads", json={"message": message}, headers={"Prefer": "wait=20"}
                    )
                    served.threads.append(post.json()["id"])
                    served.interrupts += [interrupt["id"] for interrupt in post.json()["interrupts"]]
            yield served
            # Whoever asked for what: no token is in what the server says of it.
            process.terminate()
            output, _ = process.communicate(timeout=40)
            said = output + (place / "log").read_text()
            assert "POST /v1/threads 422" in said
            assert "Traceback" not in said
            for token in tokens.values():
                assert token not in said
        finally:
            process.kill()


def mended(case: Any, served: Served, data: Any) -> None:
    """Ids that there are, keys of their own, cursors that were given, and streams that end."""
    path, query, headers = case.path_parameters or {}, case.query, case.headers
    if path.get("name") in served.tokens:
        path["name"] = "a-token-that-is-not-needed-here"  # names are learned from answers
    if data.draw(st.booleans()):
        if "thread_id" in path:
            path["thread_id"] = data.draw(st.sampled_from(served.threads))
        if "interrupt_id" in path:
            path["interrupt_id"] = data.draw(st.sampled_from(served.interrupts))
    if isinstance(query, dict):
        query.pop("cursor", None)
        if case.operation.label.endswith("/events"):
            query["until"] = "rest"
    if "Idempotency-Key" in headers and case.meta is not None and case.meta.generation.mode == POSITIVE:
        headers["Idempotency-Key"] = str(uuid.uuid4())


def allowed(failure: Exception, response: Any) -> bool:
    if type(failure).__name__ == "AcceptedNegativeData":
        # 413 is a refusal as well; and in a query there are only texts.
        texts = "parameter `metadata` in query - violates `additionalProperties`"
        return response.status_code == 413 or texts in str(failure)
    return type(failure).__name__ == "RejectedPositiveData" and bool(DEPENDS.search(response.text))


def play(served: Served, name: str, mode: GenerationMode, examples: int) -> Counter[int]:
    """Requests to every operation, as the holder of this token; how often which status was answered."""
    schema = schemathesis.openapi.from_dict(httpx2.get(f"{served.url}/openapi.json").json())
    seen: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()

        def ask(case: Any, data: Any) -> None:
            mended(case, served, data)
            response = case.call(base_url=served.url, headers=served.headers(name), timeout=30)
            seen[response.status_code] += 1
            seen[operation.label] += 1  # noqa: B023 - called in this round of the loop alone
            try:
                case.validate_response(response)
            except schemathesis.core.failures.FailureGroup as group:
                serious = [failure for failure in group.exceptions if not allowed(failure, response)]
                if serious:
                    raise

        made = hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=st.data())(ask)
        bounded = hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )(made)
        try:
            hypothesis.seed(7)(bounded)()
        except hypothesis.errors.Unsatisfiable:
            assert mode is NEGATIVE, operation.label  # nothing can be wrong about it
    return seen


@pytest.mark.parametrize(("mode", "examples"), [(POSITIVE, 7), (NEGATIVE, 6)], ids=["right", "wrong"])
def test_requests_of_an_admin_are_answered_as_described(served, mode, examples):
    seen = play(served, "admin", mode, examples)
    assert not [status for status in seen if isinstance(status, int) and status >= 500]
    assert {200, 201, 404, 422} <= set(seen) if mode is POSITIVE else {400, 422} <= set(seen)
    assert len([label for label in seen if isinstance(label, str)]) >= (20 if mode is POSITIVE else 14)


@pytest.mark.parametrize(
    "name",
    ["", "nobody", "submit", "read", "approve", "scoped", "SUBMIT_TOKEN", "APPROVER_SECRET"],
    ids=lambda name: name or "no token",
)
def test_requests_of_every_role_are_answered_as_described(served, name):
    seen = play(served, name, POSITIVE, 2)
    assert not [status for status in seen if isinstance(status, int) and status >= 500]
    refused = 401 if name in ("", "nobody") else 403
    assert seen[refused] > 0
    assert seen[200] > 0
