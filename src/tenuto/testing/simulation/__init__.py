"""The deterministic simulation: the whole runtime under every fault that a seed brings, checked at each step.

schedule.py   virtual time, one event loop per simulated process, and the choice of who goes on
process.py    a process: the real Runtime behind gates, where it may be delayed, frozen or killed
outside.py    what stands outside: tools with a ledger, and a provider; both follow the seed
people.py     what people and the weather do: decisions, races, deployments, clock jumps; then a calm in which
              everything has to come to its end
auditor.py    the promises, checked after each commit, dispatch and request
world.py      one seed from beginning to end

What flows through is real: `Runtime`, `Worker`, the loop and SQLite. Only time, chance and the outside are
not. The same seed gives the same trace. Nothing here sleeps, and nothing is random but by the seed.
"""

from tenuto.testing.simulation.auditor import BrokenPromise
from tenuto.testing.simulation.world import Figures, World, simulate

__all__ = ["BrokenPromise", "Figures", "World", "simulate"]
