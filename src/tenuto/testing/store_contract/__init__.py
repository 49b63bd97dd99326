"""What every store must do: one behavioural suite, run by each implementation's own tests.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def clock(self) -> FakeClock: ...        # the stores' clock
        @pytest.fixture
        async def store(self, clock) -> Store: ...   # open, on an empty database
        @pytest.fixture
        async def second(self, clock, store) -> Store: ...  # another one, open on the same database

The tests are coroutines: pytest-asyncio in auto mode, or whatever else runs them.
"""

from tenuto.testing.store_contract.beside import BesideContract
from tenuto.testing.store_contract.leases import LeaseContract
from tenuto.testing.store_contract.log import LogContract
from tenuto.testing.store_contract.people import PeopleContract

__all__ = ["StoreContract"]


class StoreContract(LogContract, PeopleContract, LeaseContract, BesideContract):
    """All of it."""
