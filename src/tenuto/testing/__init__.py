"""Fakes that ship: what Tenuto is tested with, for those who test their own agents.

A `ScriptedModel` stands in for a model inside the process; a `ScriptedProvider` is a whole provider behind
real HTTP, with faults on demand; a `FakeClock` moves when told to; the pytest fixture `crash` kills an agent
at a named point and restarts it, and `tenuto crashtest` does so with real processes at every point; the
fixture `postgres_url` gives a test a real PostgreSQL (`tenuto.testing.postgres`). Each is
imported only when it is asked for, so that a test which needs none of HTTP does not load a server. Nothing
here patches the package: every fake goes in where the real thing would.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenuto.clock import FakeClock
    from tenuto.models.scripted import ScriptedModel, call
    from tenuto.testing.fixture import CrashRun, crash
    from tenuto.testing.postgres import PostgresServer
    from tenuto.testing.provider import Answer, ScriptedProvider

__all__ = ["Answer", "CrashRun", "FakeClock", "PostgresServer", "ScriptedModel", "ScriptedProvider"]
__all__ += ["call", "crash"]

_PLACES = {
    "Answer": "tenuto.testing.provider",
    "CrashRun": "tenuto.testing.fixture",
    "FakeClock": "tenuto.clock",
    "PostgresServer": "tenuto.testing.postgres",
    "ScriptedModel": "tenuto.models.scripted",
    "ScriptedProvider": "tenuto.testing.provider",
    "call": "tenuto.models.scripted",
    "crash": "tenuto.testing.fixture",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
