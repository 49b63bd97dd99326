"""Where the log lives: one contract (`base.Store`), one implementation per database.

Events flow in through `create`, `append` and `resolve`; each of these is one transaction that checks,
inserts and keeps the projections (`threads`, `interrupts`) in step. Nothing here knows what an agent or
a tool is, and nothing here decides what happens next. Database drivers are imported only below this
package.
"""

from tenuto.store.base import Store, open_store

__all__ = ["Store", "open_store"]
