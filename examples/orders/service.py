"""The order service: a small HTTP server that stands for a real backend, with real money's manners.

    GET  /orders/{id}            an order, or 404
    POST /orders/{id}/refunds    refund it in full; needs an Idempotency-Key. The same key again gets the same
                                 refund (200, first 201); another key for a refunded order is a conflict (409)
    GET  /refunds?key=KEY        the refunds that were made under a key: one or none

Every request needs `Authorization: Bearer` with the token in BACKEND_API_TOKEN. Refunds are kept in a ledger,
one JSON object per line, on disk before they are confirmed.

While the file named by `--hold` exists, refunds are recorded but not answered: so that a client can be killed
between an effect and its result.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse

ORDERS: dict[str, dict[str, Any]] = {
    "16": {"id": "16", "item": "kettle", "total": "28.50", "status": "delivered"},
    "17": {"id": "17", "item": "desk lamp", "total": "42.00", "status": "delivered"},
    "18": {"id": "18", "item": "bookshelf", "total": "119.00", "status": "in transit"},
}
HOLD_POLL_SECONDS = 0.05


class Ledger:
    """The refunds that were made, in memory and in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.refunds: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, field: str, value: str) -> dict[str, Any] | None:
        return next((refund for refund in self.refunds if refund[field] == value), None)

    def add(self, refund: dict[str, Any]) -> None:
        """Keep a refund: it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(refund) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.refunds.append(refund)


def error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)


def create_app(ledger: Ledger, token: str, hold: Path | None = None) -> FastAPI:
    """The service. What looks at the ledger and adds to it does not pause in between, so no refunds race."""
    app = FastAPI(title="Orders")

    @app.middleware("http")
    async def authorize(request: Request, call_next: Any) -> Any:
        given = request.headers.get("authorization", "")
        if not secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return error(401, "wrong or missing bearer token")
        return await call_next(request)

    @app.get("/orders/{order_id}")
    async def get_order(order_id: str) -> Any:
        order = ORDERS.get(order_id)
        if order is None:
            return error(404, f"there is no order {order_id}")
        return order | {"refunded": ledger.find("order_id", order_id) is not None}

    @app.post("/orders/{order_id}/refunds")
    async def refund(
        order_id: str,
        reason: Annotated[str, Body(embed=True)],
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Any:
        if not idempotency_key:
            return error(400, "an Idempotency-Key is needed")
        order = ORDERS.get(order_id)
        if order is None:
            return error(404, f"there is no order {order_id}")
        if (made := ledger.find("key", idempotency_key)) is not None:
            if (made["order_id"], made["reason"]) != (order_id, reason):
                return error(409, "this Idempotency-Key was used for another refund")
            return JSONResponse(made, 200)
        if ledger.find("order_id", order_id) is not None:
            return error(409, f"order {order_id} is refunded already")
        number = f"R{len(ledger.refunds) + 1}"
        made = {"id": number, "order_id": order_id, "amount": order["total"], "reason": reason}
        made["key"] = idempotency_key
        ledger.add(made)
        while hold is not None and hold.exists():  # noqa: ASYNC110, ASYNC240 - for tests, which have files
            await asyncio.sleep(HOLD_POLL_SECONDS)
        return JSONResponse(made, 201)

    @app.get("/refunds")
    async def refunds(key: str) -> Any:
        made = ledger.find("key", key)
        return [] if made is None else [made]

    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="examples.orders.service", description="The example order service.")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--ledger", type=Path, required=True, help="the file that refunds are kept in")
    parser.add_argument("--ready-file", type=Path, help="is written with the URL once it answers")
    parser.add_argument("--hold", type=Path, help="while this file exists, refunds are not answered")
    options = parser.parse_args()
    token = os.environ.get("BACKEND_API_TOKEN")
    if not token:
        parser.error("BACKEND_API_TOKEN is not set")
    # Bound here, so that clients may come as soon as the URL is known: they wait in the socket's queue.
    listener = socket.create_server(("127.0.0.1", options.port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_app(Ledger(options.ledger), token, options.hold)
    print(url, flush=True)
    if options.ready_file:
        part = options.ready_file.with_suffix(".part")
        part.write_text(f"{url}\n", encoding="utf-8")
        part.replace(options.ready_file)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
