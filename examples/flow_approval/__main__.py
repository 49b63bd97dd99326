"""Run the Job once, inside the event loop that the runtime lives in."""

import argparse
import asyncio
import sys

from examples.flow_approval import __doc__ as about
from examples.flow_approval.agent import agent
from examples.flow_approval.jobs import RefundJob
from tenuto import Runtime
from tenuto.flow import Commander


def show(line: str) -> None:
    print(line, flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flow_approval",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("order", help="the number of the order, such as 17")
    parser.add_argument("--decide", choices=["approve", "reject"], help="decide without asking")
    parser.add_argument("--database", default="sqlite:///flow_approval.db", help="where the threads are kept")
    arguments = parser.parse_args()

    async def ask_person(what: str) -> str | None:
        if arguments.decide or not sys.stdin.isatty():
            decision: str | None = arguments.decide
            show(f"{what}: {decision or 'nobody is here to decide'}")
            return decision
        answer = await asyncio.to_thread(input, f"{what}\napprove, reject, or Enter for later: ")
        return answer.strip() if answer.strip() in ("approve", "reject") else None

    async with Runtime([agent], database=arguments.database) as runtime:
        job = RefundJob(runtime, arguments.order, ask_person, show)
        await Commander[None]().run_async(job, auto_exit=True)
        if job.exception is not None:
            raise job.exception


if __name__ == "__main__":
    asyncio.run(main())
