"""Docstrings in three styles."""

import pytest

from tenuto.tools.docstrings import describe

NUMPY = """Refund an order.

It cannot be undone.

Parameters
----------
order_id : str
    The order's number.
reason
    Why,
    briefly.

Returns
-------
dict
    order_id : not this.
"""
GOOGLE = """Refund an order.

It cannot be undone.

Args:
    order_id (str): The order's number.
    reason: Why,
      briefly.

Returns:
    order_id: not this.
"""
SPHINX = """Refund an order.

It cannot be undone.

:param str order_id: The order's number.
:param reason: Why,
    briefly.
:returns: order_id: not this.
"""


@pytest.mark.parametrize("docstring", [NUMPY, GOOGLE, SPHINX], ids=["numpy", "google", "sphinx"])
def test_docstrings_of_three_styles_say_the_same(docstring: str) -> None:
    assert describe(docstring, ["order_id", "reason"]) == (
        "Refund an order.\n\nIt cannot be undone.",
        {"order_id": "The order's number.", "reason": "Why, briefly."},
    )


def test_docstrings_without_sections() -> None:
    assert describe(None, ["a"]) == ("", {})
    assert describe("Do it. Note: at once.\n  Returns soon.", ["a"]) == (
        "Do it. Note: at once.\nReturns soon.",
        {},
    )
