"""An agent for an order desk, the order service that it works on, and a script that plays the model.

    ORDERS_API_BASE    where the order service is
    BACKEND_API_TOKEN  the bearer token that the service wants

Offline, in three terminals:

    BACKEND_API_TOKEN=t python -m examples.orders.service --port 8010 --ledger ledger.jsonl
    python -m tenuto.testing.provider examples.orders.provider:answer --port 8011
    ORDERS_API_BASE=http://127.0.0.1:8010 BACKEND_API_TOKEN=t \
        PROVIDER_URL=http://127.0.0.1:8011/v1 PROVIDER_MODEL=offline \
        tenuto run --agent examples.orders.agent:agent "Refund order 17, it arrived damaged."
"""
