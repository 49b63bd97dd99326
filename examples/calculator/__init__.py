"""The four-function calculator of "12-factor agents" (https://github.com/humanlayer/12-factor-agents).

Its tools do arithmetic, and when a number is garbled it asks a person (factor 7) instead of guessing.

Offline, in two terminals:

    python -m tenuto.testing.provider examples.calculator.provider:answer --port 8011
    PROVIDER_URL=http://127.0.0.1:8011/v1 PROVIDER_MODEL=offline \
        tenuto run --agent examples.calculator.agent:agent "multiply 3 and 4kjhfs"
"""
