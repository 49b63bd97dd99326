"""Looking on: metrics, traces and logs of what a runtime does, for those who operate it.

observing   `Observe`, which a runtime is given: the few places where it lets somebody look on
store       around the store: whatever becomes a fact passes there, and so does every refusal
hold        one worker's hold on one thread, as far as looking on needs it
journal     what is said of facts in the log of the process
lines       how a line of that log is written: text or JSON, without secrets
metrics     counters and histograms for Prometheus, and what is counted when it asks
traces      OpenTelemetry spans, by the semantic conventions for generative AI
content     what was said, for traces that are told to record it
environment what `tenuto serve` turns on, by the variables that are set

Facts flow in and nothing flows back: nothing here decides, delays or fails what it looks at, and trouble in
here is logged and goes no further. A runtime without an `Observe` runs none of this, and neither
OpenTelemetry nor the Prometheus client is imported before somebody asks for it.
"""

from tenuto.observe.observing import Observe

__all__ = ["Observe"]
