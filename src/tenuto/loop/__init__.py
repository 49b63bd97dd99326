"""Advancing one thread under one lease.

`run.advance` asks `next_step` and does what it says, until the thread rests; it is the only place that
branches. `decide` asks the model, `act` runs tools, and `holder.Holder` is the worker's hold on the thread:
its state, its lease, the calls that it runs, and the one place that appends.
"""

from tenuto.loop.holder import Holder
from tenuto.loop.run import advance

__all__ = ["Holder", "advance"]
